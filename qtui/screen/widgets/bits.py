"""The codes of several formats, one per line, with a cursor that toggles bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from qtui.report.pictures.glyphs import UNICODE, Glyphs
from qtui.screen.messages import Resized
from qtui.screen.widgets.line import Line, shortened
from qtui_core.dataclass import dataclass

FieldKind = Literal["sign", "exponent", "mantissa", "integer", "padding"]


@dataclass(frozen=True)
class BitField:
    """One field of a code: its letter, its bits from high to low, its kind."""

    letter: str
    bits: str
    kind: FieldKind


@dataclass(frozen=True)
class BitRow:
    """One format: its name, the fields of its code, a cell for every column, and a letter before
    the name."""

    name: str
    fields: tuple[BitField, ...]
    cells: tuple[str, ...]
    mark: str = ""


@dataclass(frozen=True)
class BitsColumn:
    """A column of text to the right of the bits."""

    title: str
    width: int
    right: bool = False


class BitGrid(Widget, can_focus=True):
    """A heading, then one line per format. The current row has the bit cursor.

    Rows scroll so that the current one stays visible. A code wider than `bits_width` is cut; in the
    current row it is shifted so that the cursor stays visible.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "bits--heading",
        "bits--name",
        "bits--sign",
        "bits--exponent",
        "bits--mantissa",
        "bits--integer",
        "bits--padding",
        "bits--cell",
        "bits--chosen",
        "bits--cursor",
    }

    rows: reactive[tuple[BitRow, ...]] = reactive((), init=False)
    columns: reactive[tuple[BitsColumn, ...]] = reactive((), init=False)
    chosen: reactive[int] = reactive(0, init=False, repaint=False)
    bit: reactive[int] = reactive(0, init=False, repaint=False)
    """Index of the bit under the cursor; 0 is the highest bit of the current row."""

    class RowChosen(Message):
        """Another row was chosen with the mouse."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class BitClicked(Message):
        """A bit was clicked, to be toggled."""

        def __init__(self, row: int, bit: int) -> None:
            super().__init__()
            self.row = row
            self.bit = bit

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs: Glyphs = UNICODE
        self.exponent_width = 8
        self.bits_width = 40
        self.name_width = 11
        self._top = 0

    # Geometry

    def fields_of(self, row: BitRow) -> list[tuple[int, BitField, int]]:
        """Each field with the column of its letter (from the start of the bits) and the index of
        its first bit. Mantissas are aligned if exponents are no wider than the column."""
        placed: list[tuple[int, BitField, int]] = []
        column, first = 0, 0
        for field in row.fields:
            if field.kind == "mantissa":
                column = max(column, 4 + self.exponent_width + 3)
            elif field.kind != "sign":
                column = max(column, 4)
            if field.kind == "padding":
                placed.append((column - 1, field, first))
                continue
            placed.append((column, field, first))
            column += len(field.bits) + 3
            first += len(field.bits)
        return placed

    def _shift(self, index: int) -> int:
        """How far the bits of a row are shifted left; 0 except in the current row."""
        row = self.rows[index]
        if index != self.chosen:
            return 0
        ends = [start + 2 + len(field.bits) for start, field, _ in self.fields_of(row)]
        excess = max(ends, default=0) - self.bits_width
        if excess <= 0:
            return 0
        at = self._bit_column(row, self.bit)
        return max(0, min(excess, at - self.bits_width + 6))

    def _bit_column(self, row: BitRow, bit: int) -> int:
        for start, field, first in self.fields_of(row):
            if field.kind != "padding" and first <= bit < first + len(field.bits):
                return start + 2 + bit - first
        return 0

    @property
    def _page(self) -> int:
        return max(1, self.size.height - 1)

    def _scroll_to_chosen(self) -> None:
        if not self.size.height:
            return
        top = min(self._top, self.chosen)
        top = max(top, self.chosen - self._page + 1)
        top = max(0, min(top, len(self.rows) - self._page))
        if top != self._top:
            self._top = top
            self.refresh()

    # Partial redrawing

    def watch_chosen(self, before: int, after: int) -> None:
        self._scroll_to_chosen()
        self._refresh_rows(before, after)

    def watch_bit(self) -> None:
        self._refresh_rows(self.chosen)

    def watch_rows(self, before: Sequence[BitRow], after: Sequence[BitRow]) -> None:
        if len(before) != len(after):
            self._scroll_to_chosen()

    def on_resize(self) -> None:
        self._top = 0
        self._scroll_to_chosen()
        self.post_message(Resized(self))

    def _refresh_rows(self, *indices: int) -> None:
        for index in indices:
            self.refresh(Region(0, index - self._top + 1, self.size.width, 1))

    # Drawing

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"bits--{name}", partial=True)

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.rich_style)
        if y == 0:
            self._draw_heading(line)
            return line.strip()
        index = self._top + y - 1
        if index < len(self.rows):
            self._draw_row(line, index)
        return line.strip()

    def _cells_start(self) -> int:
        return 2 + self.name_width + self.bits_width + 1

    def _draw_heading(self, line: Line) -> None:
        style = self._style("heading")
        below = len(self.rows) - self._top - self._page
        more = f"{below} more" if below > 0 else f"{self._top} above" if self._top else "format"
        line.put(2, more, style)
        start = 2 + self.name_width
        names = (("s", 0), ("exponent", 4), ("mantissa", 4 + self.exponent_width + 3))
        for name, offset in names if self.bits_width else ():
            line.put(start + offset, name, style)
        at = self._cells_start()
        for column in self.columns:
            if column.right:
                line.put_right(at + column.width, column.title, style)
            else:
                line.put(at, column.title, style)
            at += column.width + 1

    def _draw_row(self, line: Line, index: int) -> None:
        row = self.rows[index]
        chosen = index == self.chosen
        line.put(0, self.glyphs.pointer if chosen else row.mark, self._style("name"))
        line.put(2, shortened(row.name, self.name_width - 1), self._style("name"))
        self._draw_bits(line, row, index)
        at = self._cells_start()
        cell_style = self._style("cell")
        for column, text in zip(self.columns, row.cells, strict=False):
            text = shortened(text, column.width, self.glyphs.ellipsis)
            if column.right:
                line.put_right(at + column.width, text, cell_style)
            else:
                line.put(at, text, cell_style)
            at += column.width + 1
        if chosen:
            line.paint(0, line.width, self._style("chosen"))
            if self.has_focus and self.bits_width:
                cursor = self._cursor_column(index)
                line.paint(cursor, cursor + 1, self._style("cursor"))

    def _cursor_column(self, index: int) -> int:
        row = self.rows[index]
        return 2 + self.name_width + self._bit_column(row, self.bit) - self._shift(index)

    def _draw_bits(self, line: Line, row: BitRow, index: int) -> None:
        shift = self._shift(index)
        start, end = 2 + self.name_width, 2 + self.name_width + self.bits_width
        quiet = self._style("padding")
        cut = False
        for column, field, _ in self.fields_of(row):
            style = self._style(field.kind)
            if field.kind == "padding":
                cells = [(column + offset, bit, quiet) for offset, bit in enumerate(field.bits)]
            else:
                cells = [(column, field.letter, quiet)]
                cells += [(column + 2 + i, bit, style) for i, bit in enumerate(field.bits)]
            for at, character, cell_style in cells:
                shown = start + at - shift
                if start <= shown < end:
                    line.put(shown, character, cell_style)
                elif shown >= end:
                    cut = True
        if cut:
            line.put(end - len(self.glyphs.ellipsis), self.glyphs.ellipsis, quiet)
        if shift:
            line.put(start, self.glyphs.ellipsis, quiet)

    # The mouse

    def on_click(self, event: events.Click) -> None:
        index = self._top + event.y - 1
        if event.y < 1 or index >= len(self.rows):
            return
        event.stop()
        bit = self.bit_at(index, event.x)
        if bit is None:
            self.post_message(self.RowChosen(index))
        else:
            self.post_message(self.BitClicked(index, bit))

    def bit_at(self, index: int, x: int) -> int | None:
        """The bit of a row that is drawn in column `x`."""
        column = x - 2 - self.name_width
        if not 0 <= column < self.bits_width:
            return None
        column += self._shift(index)
        for start, field, first in self.fields_of(self.rows[index]):
            offset = column - start - 2
            if field.kind != "padding" and 0 <= offset < len(field.bits):
                return first + offset
        return None

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._wheel(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._wheel(-1)

    def _wheel(self, by: int) -> None:
        top = max(0, min(self._top + by, len(self.rows) - self._page))
        if top != self._top:
            self._top = top
            self.refresh()
