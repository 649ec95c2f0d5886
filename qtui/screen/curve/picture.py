"""The curve of a step, stacked by component, with the phases below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.color_triplet import ColorTriplet
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip

from qtui.screen.curve.chart import EMPTY, Cell, Chart, cells_of, make_chart
from qtui.screen.curve.legend import PARTS, fill, ink, letter
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui.screen.widgets.line import Line, shortened
from qtui_core.memory.replay.timeline import StackedCurve
from qtui_core.quantities import format_bytes

AXIS = 9
#: Columns between two letters of a part.
LETTERS_APART = 18
#: Rows from which on there is room for a legend.
WITH_LEGEND = 9

#: Short names of phases.
SHORT_PHASES = {
    "forward": "fwd", "backward": "bwd", "optimizer": "opt", "between": "end", "loss": "los",
}  # fmt: skip

Put = tuple[int, str, Style | None]


class CurvePicture(DrawnLines, can_focus=True):
    """Draws a curve in its size; the curve before the last change is dotted."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "curve--axis", "curve--peak", "curve--ghost", "curve--capacity", "curve--band",
        "curve--other-band",
    }  # fmt: skip
    DEFAULT_CSS = """
    CurvePicture {
        & > .curve--axis { color: $quiet; }
        & > .curve--peak { color: $foreground; text-style: bold; }
        & > .curve--ghost { color: $accent; }
        & > .curve--capacity { color: $error; }
        & > .curve--band { color: $foreground; background: $panel; }
        & > .curve--other-band { color: $foreground; background: $cursor; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.drawing = drawing
        self._curve: StackedCurve | None = None
        self._before: StackedCurve | None = None
        self._capacity: int | None = None
        self._gpu = ""
        self._rows: list[list[Put]] = []
        self._chart: Chart | None = None
        self._charted: tuple[object, ...] = ()
        self._ground: ColorTriplet | None = None
        """The background on which parts are muted; None leaves them their own colours."""
        self._lettered = not drawing.half_blocks
        """Whether parts are drawn as their letters, as where there are few colours."""

    def show(
        self,
        curve: StackedCurve,
        before: StackedCurve | None = None,
        capacity: int | None = None,
        gpu: str = "",
    ) -> None:
        """Shows a curve, the one before the last change, and the memory of the chosen GPU."""
        self._curve, self._before, self._capacity, self._gpu = curve, before, capacity, gpu
        self.redraw()

    def clear(self) -> None:
        """Shows nothing, as nothing is known of the current question."""
        self._curve, self._rows = None, []
        self.refresh()

    def on_resize(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Draws again after a change of size or colours."""
        chart, rows = self._drawn_chart(), []
        if chart is not None:
            legend = self.size.height >= WITH_LEGEND
            rows = [
                self._peak_row(chart),
                *self._chart_rows(chart, self.size.height - 2 - legend),
                self._band_row(chart),
                *([self._legend_row()] if legend else []),
            ]
        before, self._rows = self._rows, rows
        if len(before) != len(rows):
            self.refresh()
        elif changed := [y for y, row in enumerate(rows) if row != before[y]]:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def _make(self) -> Chart | None:
        """The chart of the curve, made again for another one or another size only; None without a
        curve or room."""
        room = self.size.width - AXIS - 1
        if self._curve is None or room < 8 or self.size.height < 4:
            return None
        wanted = (self._curve, self._before, room, self._capacity)
        if self._chart is None or self._charted != wanted:
            self._chart = make_chart(
                self._curve, room, before=self._before, capacity=self._capacity
            )
            self._charted = wanted
        return self._chart

    def _drawn_chart(self) -> Chart | None:
        """The chart as it is drawn."""
        return self._make()

    @property
    def text(self) -> str:
        """The picture as plain text for copying; parts appear as their letters."""
        shown, self._lettered = self._rows, True
        self.redraw()
        text = "\n".join(self._line(y).strip().text.rstrip() for y in range(len(self._rows)))
        self._rows, self._lettered = shown, not self.drawing.half_blocks
        return text

    def render_line(self, y: int) -> Strip:
        return self._line(y).strip()

    def _line(self, y: int) -> Line:
        line = Line(self.size.width, self.base_style)
        for column, text, style in self._rows[y] if y < len(self._rows) else ():
            line.put(column, text, style)
        return line

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"curve--{name}", partial=True)

    # Rows

    def _peak_row(self, chart: Chart) -> list[Put]:
        glyphs = self.drawing.glyphs
        nbytes, mark = format_bytes(sum(chart.columns[chart.peak])), glyphs.marker_down
        for most in (f"{nbytes} of tensors", nbytes):
            size = len(most) + 2
            if chart.peak + size <= len(chart.columns):
                return [(AXIS + chart.peak, f"{mark} {most}", self._style("peak"))]
            if chart.peak + 1 >= size:
                at = AXIS + chart.peak + 1 - size
                return [(at, f"{most} {mark}", self._style("peak"))]
        return [(AXIS + chart.peak, mark, self._style("peak"))]

    def _chart_rows(self, chart: Chart, tall: int) -> list[list[Put]]:
        cells = [cells_of(column, tall, chart.top) for column in chart.columns]
        rows: list[list[Put]] = []
        letters = self._letters(cells, chart, tall)
        ceiling = None
        if chart.capacity is not None:
            ceiling = min(tall - 1, chart.capacity * tall // chart.top)
        for row in range(tall - 1, -1, -1):
            puts: list[Put] = []
            label = self._label(row, tall, chart.top)
            if label:
                puts.append((AXIS - 1 - len(label), label, self._style("axis")))
            puts += self._runs([column[row] for column in cells])
            puts += letters.get(row, ())
            puts += self._over(chart, cells, row, tall, row == ceiling)
            rows.append(puts)
        return rows

    def _label(self, row: int, tall: int, top: int) -> str:
        every = 4 if tall >= 8 else max(1, tall - 1)
        from_top = tall - 1 - row
        if row == 0:
            return "0"
        if from_top % every == 0 and row >= every // 2:
            return format_bytes(top * (row + 1) // tall)
        return ""

    def _runs(self, row: Sequence[Cell]) -> list[Put]:
        """Merges equal neighbouring cells into one text."""
        puts: list[Put] = []
        start = 0
        for at in range(1, len(row) + 1):
            if at == len(row) or row[at] != row[start]:
                if row[start] != EMPTY:
                    glyph, style = self._drawn(row[start])
                    puts.append((AXIS + start, glyph * (at - start), style))
                start = at
        return puts

    def _drawn(self, cell: Cell) -> tuple[str, Style]:
        depth, ground = self.drawing.depth, self._ground
        if self._lettered:
            place = cell.lower if cell.eighths >= 4 else cell.upper
            if place < 0:
                return " ", Style.null()
            if ground is None:
                return PARTS[place].letter, ink(place, depth)
            return PARTS[place].letter.lower(), ink(place, depth) + Style(bold=False, dim=True)
        if cell.eighths >= 8:
            return " ", fill(-1, cell.lower, depth, ground)
        glyph = self.drawing.glyphs.eighths[cell.eighths]
        return glyph, fill(cell.lower, cell.upper, depth, ground)

    def _letters(
        self, cells: Sequence[Sequence[Cell]], chart: Chart, tall: int
    ) -> dict[int, list[Put]]:
        """A letter in the middle of each part at intervals, as not everyone can tell the colours
        apart."""
        found: dict[int, list[Put]] = {}
        if self._lettered:
            return found
        for band in chart.bands:
            count = max(1, (band.stop - band.start) // LETTERS_APART)
            for number in range(count):
                at = band.start + (2 * number + 1) * (band.stop - band.start) // (2 * count)
                if at >= len(cells):
                    continue
                whole: dict[int, list[int]] = {}
                for row in range(tall):
                    if cells[at][row].eighths >= 8:
                        whole.setdefault(cells[at][row].lower, []).append(row)
                for place, rows in whole.items():
                    style = letter(place, self.drawing.depth, self._ground)
                    put = (AXIS + at, PARTS[place].letter, style)
                    found.setdefault(rows[len(rows) // 2], []).append(put)
        return found

    def _over(
        self,
        chart: Chart,
        cells: Sequence[Sequence[Cell]],
        row: int,
        tall: int,
        ceiling: bool,
    ) -> list[Put]:
        """What is drawn over the parts: the curve before the change, and in empty cells the memory
        of the GPU."""
        glyphs = self.drawing.glyphs
        puts: list[Put] = []
        if ceiling and chart.capacity is not None:
            style = self._style("capacity")
            for column, of_column in enumerate(cells):
                if of_column[row] == EMPTY:
                    puts.append((AXIS + column, glyphs.baseline, style))
            name = shortened(f" {self._gpu} {format_bytes(chart.capacity)} ", 40, glyphs.ellipsis)
            if all(column[row] == EMPTY for column in cells[1 : len(name) + 1]):
                puts.append((AXIS + 1, name, style))
        style = self._style("ghost")
        for column, height in enumerate(chart.ghost):
            here = min(tall - 1, height * tall // chart.top)
            if here != row or not height:
                continue
            cell = cells[column][row]
            if cell == EMPTY or self._lettered:
                puts.append((AXIS + column, glyphs.dot, style))
            elif cell.eighths >= 8:
                puts.append((AXIS + column, glyphs.dot, letter(cell.lower, self.drawing.depth)))
        return puts

    def _band_row(self, chart: Chart) -> list[Put]:
        """The names of the phases under their columns, with borders, because shades may be
        alike."""
        puts: list[Put] = []
        for number, band in enumerate(chart.bands):
            width = band.stop - band.start
            if width < 1:
                continue
            room = max(0, width - 1)
            name = band.name.removesuffix(" steps")
            if len(name) > room:
                name = SHORT_PHASES.get(name, name)[:room]
            text = (self.drawing.glyphs.vertical + name.center(room))[:width].ljust(width)
            style = self._style("other-band" if number % 2 else "band")
            puts.append((AXIS + band.start, text, style))
        return puts

    def _names(self, used: Sequence[int]) -> tuple[list[str], int]:
        """As many names of parts as fit, and the cells between them."""
        room = self.size.width - 1
        for names in (
            [PARTS[place].name for place in used],
            [PARTS[place].short for place in used],
        ):
            if sum(len(name) + 4 for name in names) - 2 <= room:
                return names, 2
        return [PARTS[place].short[:4] for place in used], 1

    def _legend_row(self) -> list[Put]:
        curve = self._curve
        assert curve is not None
        depth = self.drawing.depth
        used = [place for place, row in enumerate(curve.rows) if any(row)]
        names, gap = self._names(used)
        puts: list[Put] = []
        at = 1
        for place, name in zip(used, names, strict=True):
            style = ink(place, depth) if self._lettered else letter(place, depth)
            puts.append((at, PARTS[place].letter, style))
            puts.append((at + 2, name, self._style("axis")))
            at += 2 + len(name) + gap
        if self._before is not None and at + 9 <= self.size.width:
            puts.append((at, self.drawing.glyphs.dot, self._style("ghost")))
            puts.append((at + 2, "before", self._style("axis")))
        return puts
