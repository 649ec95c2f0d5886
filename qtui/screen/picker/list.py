"""The list of a picker: its rows, of which only those on the screen are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from qtui.screen.picker.matching import Letters, folded
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui_core.models.quoting import printable

#: The least cells for a name: with less room it is shown without its facts.
NAME = 24


class PickerList(ScrollView, DrawnLines, can_focus=False):
    """Rows of a name, its typed letters marked, and of facts at the end. A click picks one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "picker--row", "picker--chosen", "picker--quiet", "picker--match",
    }  # fmt: skip
    DEFAULT_CSS = """
    PickerList {
        height: 1fr;
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
        & > .picker--row { color: $foreground; }
        & > .picker--quiet { color: $quiet; }
        & > .picker--match { color: $warning; text-style: bold; }
        & > .picker--chosen { background: $cursor; color: $foreground; }
        &:nocolor > .picker--chosen { text-style: reverse; }
        &:nocolor > .picker--match { text-style: bold underline; }
        &:ansi > .picker--chosen { text-style: reverse; }
        &:ansi > .picker--match { text-style: bold underline; }
    }
    """

    def __init__(
        self,
        drawing: Drawing,
        text_of: Callable[[int], str],
        facts_of: Callable[[int], str],
        picked: Callable[[int], None],
    ) -> None:
        super().__init__()
        self.drawing = drawing
        self._text_of, self._facts_of, self._picked = text_of, facts_of, picked
        self._letters = Letters("")
        self.count = 0
        self.index = 0

    def show(self, count: int, index: int, letters: Letters) -> None:
        """Shows other rows; `text_of` and `facts_of` make those on the screen."""
        self.count, self._letters = count, letters
        self.virtual_size = Size(0, count)
        self.go(index)

    def go(self, index: int) -> None:
        """Moves the cursor, as far as there are rows."""
        self.index = max(0, min(index, self.count - 1))
        self.scroll_to_region(Region(0, self.index, 1, 1), animate=False, force=True)
        self.refresh()

    def on_resize(self) -> None:
        self.go(self.index)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        index = event.y + self.scroll_offset.y
        if index < self.count:
            self._picked(index)  # at once: a letter typed behind the click changes the rows

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + self.scroll_offset.y
        if index >= self.count:
            return Strip.blank(width, self.base_style)
        chosen = index == self.index
        base = self.get_component_rich_style("picker--chosen" if chosen else "picker--row")
        quiet = base if chosen else self.get_component_rich_style("picker--quiet")
        pointer = f"{self.drawing.glyphs.pointer} " if chosen else "  "
        facts = f"  {printable(self._facts_of(index))} "
        if width - len(pointer) - cell_len(facts) < min(NAME, width // 2):
            facts = " "
        name = printable(self._text_of(index))
        room = max(0, width - len(pointer) - cell_len(facts))
        return Strip(
            [
                Segment(pointer, base),
                *self._marked(name, room, base),
                Segment(facts, quiet),
            ]
        ).adjust_cell_length(width, base)

    def _marked(self, name: str, room: int, base: Style) -> Sequence[Segment]:
        """A name in `room` cells, with the typed letters marked. Of a long one the end is shown,
        which distinguishes tensors and paths most."""
        marks = self._letters.marks(folded(name))
        cut = 0
        if cell_len(name) > room:
            ellipsis = self.drawing.glyphs.ellipsis
            cut = len(name) - room + len(ellipsis)
            while cell_len(name[cut:]) > room - len(ellipsis):
                cut += 1
            name = ellipsis + name[cut:]
            marks = {mark - cut + len(ellipsis) for mark in marks if mark >= cut}
        found = self.get_component_rich_style("picker--match")
        marked = base + Style(bold=found.bold, underline=found.underline)
        if not base.reverse:  # reversed, the colour of a match would become its ground
            marked += Style(color=found.color)
        segments: list[Segment] = []
        start = 0
        for at in range(1, len(name) + 1):
            if at == len(name) or (at in marks) != (start in marks):
                segments.append(Segment(name[start:at], marked if start in marks else base))
                start = at
        blank = room - cell_len(name)
        return [*segments, Segment(" " * blank, base)] if blank > 0 else segments
