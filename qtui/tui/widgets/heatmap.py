"""A grid of numbers as a picture with axes, a legend and a cursor."""

from __future__ import annotations

from itertools import pairwise
from textwrap import wrap
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from qtui.tui.widgets.axis import column_labels, row_labels
from qtui.tui.widgets.drawing import Drawing, Ramp
from qtui.tui.widgets.drawn import DrawnLines
from qtui.tui.widgets.heatcells import Picture
from qtui.tui.widgets.heatgrid import HeatGrid, HeatScale
from qtui.tui.widgets.heatlegend import scale_segments

# A frame of 120x40 half blocks is the most that a slow SSH line redraws without a stutter.
MAX_COLUMNS, MAX_LINES = 120, 40
# Two lines of axis (marks and numbers) where there is height for them, else one.
TWO_AXIS_LINES_FROM = 11
# A short tensor (a vector is one row) is drawn taller than it is, but not as a wall.
TALLEST_CELL = 8
# Cells that a key for a long way moves the cursor.
FAR = 10


class Heatmap(DrawnLines, can_focus=True):
    """The picture of a HeatGrid on its scale.

    Two cells share a character where the terminal has colours; elsewhere shades carry the
    level. The cursor is also marked on both axes, so it is never told by colour alone.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "heatmap--axis", "heatmap--title", "heatmap--cursor", "heatmap--mark", "heatmap--message",
    }  # fmt: skip
    DEFAULT_CSS = """
    Heatmap {
        & > .heatmap--axis { color: $quiet; }
        & > .heatmap--title { color: $foreground; }
        & > .heatmap--cursor { color: #ff4f81; text-style: bold; }
        & > .heatmap--mark { color: $warning; }
        & > .heatmap--message { color: $quiet; }
        &.-trouble > .heatmap--message { color: $error; }
        &:focus > .heatmap--title { color: $primary; text-style: bold; }
        &:nocolor > .heatmap--cursor { text-style: bold reverse; }
        &:ansi > .heatmap--cursor { color: ansi_bright_magenta; text-style: bold reverse; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(0, -1)", "Left", show=False, id="heatmap.left",
                tooltip="Move the cursor one cell left"),
        Binding("right,l", "move(0, 1)", "Right", show=False, id="heatmap.right",
                tooltip="Move the cursor one cell right"),
        Binding("up,k", "move(-1, 0)", "Up", show=False, id="heatmap.up",
                tooltip="Move the cursor one cell up"),
        Binding("down,j", "move(1, 0)", "Down", show=False, id="heatmap.down",
                tooltip="Move the cursor one cell down"),
        Binding("shift+left,H", "push(0, -1)", "Far left", show=False, id="heatmap.far_left",
                tooltip="Ten cells left, or the window when zoomed in"),
        Binding("shift+right,L", "push(0, 1)", "Far right", show=False, id="heatmap.far_right",
                tooltip="Ten cells right, or the window when zoomed in"),
        Binding("shift+up,K", "push(-1, 0)", "Far up", show=False, id="heatmap.far_up",
                tooltip="Ten cells up, or the window when zoomed in"),
        Binding("shift+down,J", "push(1, 0)", "Far down", show=False, id="heatmap.far_down",
                tooltip="Ten cells down, or the window when zoomed in"),
        Binding("full_stop", "peak", "Peak", id="heatmap.peak",
                tooltip="Move the cursor to the largest magnitude"),
        Binding("enter", "choose", "To Formats", id="heatmap.choose",
                tooltip="Show this element in Formats"),
    ]  # fmt: skip

    titles: reactive[tuple[str, ...]] = reactive(("",))
    """What stands above the picture, from the longest to the shortest: the first that leaves
    room for the scale is taken."""

    has_legend: reactive[bool] = reactive(True)
    """Whether the scale stands beside the title; else it is shown elsewhere."""

    message: reactive[str] = reactive("")
    """What is said in place of a picture, while there is none."""

    marked_columns: reactive[tuple[int, ...]] = reactive(())
    """Columns of the matrix that are pointed at below the picture."""

    class CursorMoved(Message):
        """The cursor is on another cell."""

        def __init__(self, grid_row: int, grid_column: int) -> None:
            super().__init__()
            self.grid_row = grid_row
            self.grid_column = grid_column

    class Chosen(Message):
        """The cell under the cursor was asked for."""

    class Pushed(Message):
        """The cursor wants to go on where the window of the grid ends, or (`far`) the window is
        to be moved: so many steps down and right."""

        def __init__(self, rows: int, columns: int, *, far: bool) -> None:
            super().__init__()
            self.rows = rows
            self.columns = columns
            self.far = far

    class CapacityChanged(Message):
        """The widget was resized: another number of cells would fill it."""

    def __init__(self, drawing: Drawing, **options: str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.drawing = drawing
        self._grid: HeatGrid | None = None
        self._levels: list[int] = []
        self._scale = HeatScale(0.0, 0.0)
        self.cursor = (0, 0)

    # What is shown

    @property
    def grid(self) -> HeatGrid | None:
        return self._grid

    @property
    def scale(self) -> HeatScale:
        return self._scale

    @property
    def _ramp(self) -> Ramp:
        return self.drawing.signed_ramp if self._scale.signed else self.drawing.ramp

    def show(
        self,
        grid: HeatGrid | None,
        cursor: tuple[int, int] | None = None,
        scale: HeatScale | None = None,
    ) -> None:
        """Draw another grid, the cursor on the given cell or on the largest magnitude; on a
        logarithmic scale of magnitudes unless another one is given."""
        self._grid = grid
        if grid is not None:
            self._scale = scale or HeatScale.of(grid.cells)
            self._levels = self._scale.levels(grid.cells, self._ramp)
            row, column = grid.peak if cursor is None else cursor
            self.cursor = (min(row, grid.grid_rows - 1), min(column, grid.grid_columns - 1))
        self.refresh()

    def redraw(self) -> None:
        """The drawing changed: levels and styles are computed anew."""
        if self._grid is not None:
            self._levels = self._scale.levels(self._grid.cells, self._ramp)
        self.refresh()

    def capacity(self, rows: int) -> tuple[int, int]:
        """Rows and columns of the largest grid that can be drawn of a matrix with so many
        rows (their numbers stand at the left), at least 1 x 1."""
        area = self._area_for(rows)
        lines = max(1, min(MAX_LINES, area.height))
        return lines * self._rows_per_line, max(1, min(MAX_COLUMNS, area.width))

    @property
    def _rows_per_line(self) -> int:
        return 2 if self.drawing.half_blocks else 1

    # Where things are

    @property
    def _gutter(self) -> int:
        return self._area.x

    @property
    def _axis_lines(self) -> int:
        return 2 if self.size.height >= TWO_AXIS_LINES_FROM else 1

    @property
    def _area(self) -> Region:
        return self._area_for(self._grid.rows if self._grid is not None else 0)

    def _area_for(self, rows: int) -> Region:
        """The picture inside the widget, axes and title left out."""
        gutter, axis = len(f"{max(rows - 1, 0):,}") + 2, self._axis_lines
        width, height = self.size.width - gutter - 1, self.size.height - 1 - axis
        return Region(gutter, 1, max(0, width), max(0, height))

    def _drawn(self, grid: HeatGrid) -> tuple[int, int]:
        """Half rows (or rows) and columns of the picture: whole multiples of the grid."""
        area = self._area
        rows = min(MAX_LINES, area.height) * self._rows_per_line
        columns = min(MAX_COLUMNS, area.width)
        tallest = TALLEST_CELL * self._rows_per_line
        if grid.grid_rows <= rows:
            rows = grid.grid_rows * min(rows // grid.grid_rows, tallest)
        if grid.grid_columns <= columns:
            columns = grid.grid_columns * (columns // grid.grid_columns)
        return rows, columns

    def _cell_at(self, x: int, y: int) -> tuple[int, int] | None:
        grid, area = self._grid, self._area
        if grid is None:
            return None
        rows, columns = self._drawn(grid)
        row, column = (y - area.y) * self._rows_per_line, x - area.x
        if not (0 <= row < rows and 0 <= column < columns):
            return None
        return row * grid.grid_rows // rows, column * grid.grid_columns // columns

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    # Drawing

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if self._grid is None:
            return self._message_line(y, width)
        if y == 0:
            return self._title_line(width)
        area = self._area
        rows, columns = self._drawn(self._grid)
        lines = -(-rows // self._rows_per_line)
        if y < area.y + lines and columns:
            segments = self._picture_line(self._grid, y - area.y, rows, columns)
        elif y < area.y + lines + self._axis_lines and columns:
            segments = self._axis_line(self._grid, y - area.y - lines, columns)
        else:
            segments = []
        return self._strip(segments, width)

    def _strip(self, segments: list[Segment], width: int) -> Strip:
        # Every segment carries a style: Textual's NO_COLOR filter fails on one without.
        # All characters are one cell wide, which Textual would have to find out one by one.
        length = sum(len(segment.text) for segment in segments)
        if length == width:
            return Strip(segments, width)
        if length < width:
            return Strip([*segments, Segment(" " * (width - length), self.base_style)], width)
        return Strip(segments, length).crop(0, width)

    def _message_line(self, y: int, width: int) -> Strip:
        lines = [
            line
            for paragraph in self.message.splitlines()
            for line in wrap(paragraph, max(8, width - 4))
        ]
        first = max(0, (self.size.height - len(lines)) // 2)
        if not first <= y < first + len(lines):
            return Strip.blank(width, self.base_style)
        text = lines[y - first][:width]
        style = self.get_component_rich_style("heatmap--message")
        pad = (width - len(text)) // 2
        return self._strip([Segment(" " * pad, self.base_style), Segment(text, style)], width)

    def _title_line(self, width: int) -> Strip:
        style = self.get_component_rich_style("heatmap--title")
        quiet = self.get_component_rich_style("heatmap--axis")
        for title in self.titles if self.has_legend else ():
            for steps in (8, 4, 2):
                scale = scale_segments(self._scale, self._ramp, steps, quiet, self.base_style)
                room = width - len(title) - sum(len(s.text) for s in scale)
                if room >= 2:
                    gap = Segment(" " * room, self.base_style)
                    return self._strip([Segment(title, style), gap, *scale], width)
        shortest = next((title for title in self.titles if len(title) <= width), self.titles[-1])
        return self._strip([Segment(shortest, style)], width)

    def _picture_line(self, grid: HeatGrid, line: int, rows: int, columns: int) -> list[Segment]:
        first = line * self._rows_per_line
        top = first * grid.grid_rows // rows
        two = self._rows_per_line == 2 and first + 1 < rows
        bottom = (first + 1) * grid.grid_rows // rows if two else None
        segments = [*self._row_label(grid, line, rows, top, bottom)]
        edges = [
            -(-column * columns // grid.grid_columns) for column in range(grid.grid_columns + 1)
        ]
        widths = [right - left for left, right in pairwise(edges)]
        picture = Picture(self.drawing, self._ramp, self._levels, grid.grid_columns, self.cursor)
        ink = self.get_component_rich_style("heatmap--cursor")
        if self._rows_per_line == 2:
            segments.extend(picture.half_blocks(top, bottom, widths, ink, self.base_style))
        else:
            segments.extend(picture.shades(top, widths, ink, self.base_style))
        return segments

    def _row_label(
        self, grid: HeatGrid, line: int, rows: int, top: int, bottom: int | None
    ) -> list[Segment]:
        quiet = self.get_component_rich_style("heatmap--axis")
        lines = -(-rows // self._rows_per_line)
        labels = row_labels(lines, lambda n: grid.first_row(
            n * self._rows_per_line * grid.grid_rows // rows
        ))  # fmt: skip
        text = f"{labels.get(line, '')} ".rjust(self._gutter - 1)
        if self.cursor[0] in (top, bottom):
            first = -(-self.cursor[0] * rows // grid.grid_rows) // self._rows_per_line
            text = f"{grid.first_row(self.cursor[0]):,} " if line == first else ""
            text = text.rjust(self._gutter - 1)
            pointer = Segment(
                self.drawing.glyphs.pointer, self.get_component_rich_style("heatmap--cursor")
            )
            return [Segment(text, self.get_component_rich_style("heatmap--title")), pointer]
        return [Segment(f"{text} ", quiet)]

    def _axis_line(self, grid: HeatGrid, line: int, columns: int) -> list[Segment]:
        """Marks under the picture (line 0 of two), numbers below them."""
        quiet = self.get_component_rich_style("heatmap--axis")
        gutter = Segment(" " * self._gutter, quiet)
        step = columns / grid.grid_columns
        at = int(self.cursor[1] * step)
        here = grid.first_column(self.cursor[1])
        if line == 0 and self._axis_lines == 2:
            marks = [" "] * columns
            for marked in self.marked_columns:
                if grid.holds_column(marked):
                    cell = grid.cell_of(0, marked)[1]
                    marks[int(cell * step)] = self.drawing.glyphs.outlier
            style = self.get_component_rich_style("heatmap--mark")
            cursor = Segment(
                self.drawing.glyphs.marker, self.get_component_rich_style("heatmap--cursor")
            )
            before, after = "".join(marks[:at]), "".join(marks[at + 1 :])
            return [gutter, Segment(before, style), cursor, Segment(after, style)]
        text = column_labels(
            columns, at, here,
            lambda x: grid.first_column(x * grid.grid_columns // columns),
        )  # fmt: skip
        return [gutter, Segment(text, quiet)]

    # Moving

    def action_move(self, rows: int, columns: int) -> None:
        if self._grid is None:
            return
        grid, (row, column) = self._grid, (self.cursor[0] + rows, self.cursor[1] + columns)
        inside = 0 <= row < grid.grid_rows and 0 <= column < grid.grid_columns
        if grid.window is not None and not inside:
            self.post_message(self.Pushed(rows, columns, far=False))
            return
        self._go((max(0, min(grid.grid_rows - 1, row)), max(0, min(grid.grid_columns - 1, column))))

    def action_push(self, rows: int, columns: int) -> None:
        if self._grid is not None and self._grid.window is not None:
            self.post_message(self.Pushed(rows, columns, far=True))
        else:
            self.action_move(rows * FAR, columns * FAR)

    def point_at(self, cell: tuple[int, int]) -> None:
        """Move the cursor and tell nobody: another picture of the same cells has moved."""
        if self._grid is not None:
            self._go(cell, tell=False)

    def action_peak(self) -> None:
        if self._grid is not None:
            self._go(self._grid.peak)

    def action_choose(self) -> None:
        if self._grid is not None:
            self.post_message(self.Chosen())

    def _go(self, cell: tuple[int, int], *, tell: bool = True) -> None:
        if cell == self.cursor:
            return
        before, self.cursor = self.cursor, cell
        # Only the lines that change: over a slow line a whole picture is a stutter.
        self.refresh(*self._lines_of(before[0]), *self._lines_of(cell[0]), *self._axis_regions())
        if tell:
            self.post_message(self.CursorMoved(*cell))

    def _lines_of(self, grid_row: int) -> list[Region]:
        """The lines of the widget on which a grid row is drawn."""
        assert self._grid is not None
        rows, _ = self._drawn(self._grid)
        first = -(-grid_row * rows // self._grid.grid_rows)
        last = -(-(grid_row + 1) * rows // self._grid.grid_rows) - 1
        per_line, width, top = self._rows_per_line, self.size.width, self._area.y
        return [
            Region(0, top + line, width, 1)
            for line in range(first // per_line, max(first, last) // per_line + 1)
        ]

    def _axis_regions(self) -> list[Region]:
        assert self._grid is not None
        rows, _ = self._drawn(self._grid)
        top = self._area.y + -(-rows // self._rows_per_line)
        return [Region(0, top, self.size.width, self._axis_lines)]

    def on_click(self, event: events.Click) -> None:
        cell = self._cell_at(event.x, event.y)
        if cell is None:
            return
        event.stop()
        if event.chain == 2 and cell == self.cursor:
            self.action_choose()
        else:
            self._go(cell)

    def on_resize(self) -> None:
        self.post_message(self.CapacityChanged())
