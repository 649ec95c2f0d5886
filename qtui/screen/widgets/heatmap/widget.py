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

from qtui.screen.messages import Resized
from qtui.screen.widgets.axis import column_labels, row_labels
from qtui.screen.widgets.drawing import Drawing, Ramp
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui.screen.widgets.heatmap.cells import HeatPicture
from qtui.screen.widgets.heatmap.grid import HeatGrid, HeatScale
from qtui.screen.widgets.heatmap.legend import scale_segments
from qtui.screen.widgets.heatmap.places import HeatPlaces
from qtui.screen.widgets.text_picture import Canvas, centred, plain_text

# Cells that the keys for large steps move the cursor.
FAR = 10


class Heatmap(DrawnLines, can_focus=True):
    """The picture of a HeatGrid on its scale.

    With colours two cells share a character; without them shades show the level. The cursor is also
    marked on both axes, so that it is not marked by colour alone.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "heatmap--axis", "heatmap--title", "heatmap--cursor", "heatmap--mark", "heatmap--message",
    }  # fmt: skip
    DEFAULT_CSS = """
    Heatmap {
        & > .heatmap--axis { color: $quiet; }
        & > .heatmap--title { color: $foreground; }
        & > .heatmap--cursor { color: #ff2f6f; text-style: bold; }
        & > .heatmap--mark { color: $warning; }
        & > .heatmap--message { color: $quiet; }
        &.-trouble > .heatmap--message { color: $error; }
        &:focus > .heatmap--title { color: $primary; text-style: bold; }
        &:nocolor > .heatmap--cursor { text-style: bold reverse; }
        &:ansi > .heatmap--cursor { color: $foreground; text-style: bold reverse; }
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
        Binding("g", "edge(-1, 0)", "Top", show=False, id="heatmap.top",
                tooltip="Move the cursor to the first row"),
        Binding("G", "edge(1, 0)", "Bottom", show=False, id="heatmap.bottom",
                tooltip="Move the cursor to the last row"),
        Binding("home", "edge(0, -1)", "Line start", show=False, id="heatmap.line_start",
                tooltip="Move the cursor to the first column"),
        Binding("end", "edge(0, 1)", "Line end", show=False, id="heatmap.line_end",
                tooltip="Move the cursor to the last column"),
        Binding("pageup", "push(-1, 0)", "Page up", show=False, id="heatmap.page_up",
                tooltip="Move a page up"),
        Binding("pagedown", "push(1, 0)", "Page down", show=False, id="heatmap.page_down",
                tooltip="Move a page down"),
        Binding("asterisk", "peak", "Peak", id="heatmap.peak",
                tooltip="Move the cursor to the largest magnitude"),
        Binding("enter", "choose", "To Formats", id="heatmap.choose",
                tooltip="Show this element in Formats"),
    ]  # fmt: skip

    titles: reactive[tuple[str, ...]] = reactive(("",))
    """Titles from the longest to the shortest; the first that leaves room for the scale is
    shown."""

    has_legend: reactive[bool] = reactive(True)
    """Whether the scale is beside the title; otherwise it is shown elsewhere."""

    message: reactive[str] = reactive("")
    """The text in place of a picture, if there is none."""

    marked_columns: reactive[tuple[int, ...]] = reactive(())
    """Columns of the matrix that are pointed at below the picture."""

    class CursorMoved(Message):
        """The cursor is on another cell."""

        def __init__(self, grid_row: int, grid_column: int) -> None:
            super().__init__()
            self.grid_row = grid_row
            self.grid_column = grid_column

    class CellChosen(Message):
        """The cell under the cursor was chosen."""

    class Pushed(Message):
        """The cursor should move beyond the window of the grid, or (`far`) the window itself should
        move: by this many steps down and right."""

        def __init__(self, rows: int, columns: int, *, far: bool) -> None:
            super().__init__()
            self.rows = rows
            self.columns = columns
            self.far = far

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
        """Draws another grid, with the cursor on the given cell or on the largest magnitude; the
        scale of magnitudes is logarithmic unless another is given."""
        before = self._grid is None, self._at_peak
        self._grid = grid
        if grid is not None:
            self._scale = scale or HeatScale.of(grid.cells)
            self._levels = self._scale.levels(grid.cells, self._ramp)
            row, column = grid.peak if cursor is None else cursor
            self.cursor = (min(row, grid.grid_rows - 1), min(column, grid.grid_columns - 1))
        if before != (grid is None, self._at_peak):
            self.refresh_bindings()  # keys that go somewhere, or do not
        self.refresh()

    def redraw(self) -> None:
        """Draws again after the drawing (colours, glyphs) changed."""
        if self._grid is not None:
            self._levels = self._scale.levels(self._grid.cells, self._ramp)
        self.refresh()

    def capacity(self, rows: int) -> tuple[int, int]:
        """Rows and columns of the largest grid that can be drawn for a matrix with this many rows
        (whose numbers are at the left), at least 1 x 1."""
        return self._places_for(rows).capacity

    @property
    def places(self) -> HeatPlaces:
        """The current layout."""
        return self._places_for(self._grid.rows if self._grid is not None else 0)

    def _places_for(self, rows: int) -> HeatPlaces:
        return HeatPlaces(*self.size, 2 if self.drawing.half_blocks else 1, rows)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    # Drawing

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if self._grid is None:
            return self._message_line(y, width)
        if y == 0:
            return self._title_line(width)
        places = self.places
        top, lines = places.area.y, places.lines(self._grid)
        if not places.drawn(self._grid)[1]:
            segments = []
        elif y < top + lines:
            segments = self._picture_line(self._grid, places, y - top)
        elif y < top + lines + places.axis_lines:
            segments = self._axis_line(self._grid, places, y - top - lines)
        else:
            segments = []
        return self._strip(segments, width)

    def _strip(self, segments: list[Segment], width: int) -> Strip:
        # Every segment has a style: Textual's NO_COLOR filter fails on one without. The lengths are
        # given because all characters are one cell wide, and Textual would have to measure each.
        length = sum(len(segment.text) for segment in segments)
        if length == width:
            return Strip(segments, width)
        if length < width:
            return Strip([*segments, Segment(" " * (width - length), self.base_style)], width)
        return Strip(segments, length).crop(0, width)

    def _message_line(self, y: int, width: int) -> Strip:
        if self.has_class("-trouble"):
            canvas = Canvas(width, self.size.height, self.drawing.glyphs)
            rows = plain_text(centred(self.message)(canvas), width)
            text = rows[y] if y < len(rows) else ""
            style = self.get_component_rich_style("heatmap--message")
            return self._strip([Segment(text, style)], width)
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

    def _picture_line(self, grid: HeatGrid, places: HeatPlaces, line: int) -> list[Segment]:
        rows, columns = places.drawn(grid)
        first = line * places.per_line
        top = first * grid.grid_rows // rows
        two = places.per_line == 2 and first + 1 < rows
        bottom = (first + 1) * grid.grid_rows // rows if two else None
        segments = [*self._row_label(grid, places, line, self.cursor[0] in (top, bottom))]
        edges = [
            -(-column * columns // grid.grid_columns) for column in range(grid.grid_columns + 1)
        ]
        widths = [right - left for left, right in pairwise(edges)]
        picture = HeatPicture(
            self.drawing, self._ramp, self._levels, grid.grid_columns, self.cursor
        )
        ink = self.get_component_rich_style("heatmap--cursor")
        if places.per_line == 2:
            segments.extend(picture.half_blocks(top, bottom, widths, ink, self.base_style))
        else:
            segments.extend(picture.shades(top, widths, ink, self.base_style))
        return segments

    def _row_label(
        self, grid: HeatGrid, places: HeatPlaces, line: int, here: bool
    ) -> list[Segment]:
        """What is at the left of a line; `here`: the cursor is on it."""
        gutter, rows = places.gutter, places.drawn(grid)[0]
        if here:
            first = line == places.lines_of(grid, self.cursor[0])[0]
            text = f"{grid.first_row(self.cursor[0]):,} " if first else ""
            title = self.get_component_rich_style("heatmap--title")
            cursor = self.get_component_rich_style("heatmap--cursor")
            pointer = Segment(self.drawing.glyphs.pointer, cursor)
            return [Segment(text.rjust(gutter - 1), title), pointer]
        labels = row_labels(places.lines(grid), lambda n: grid.first_row(
            n * places.per_line * grid.grid_rows // rows
        ))  # fmt: skip
        text = f"{labels.get(line, '')} ".rjust(gutter - 1)
        return [Segment(f"{text} ", self.get_component_rich_style("heatmap--axis"))]

    def _axis_line(self, grid: HeatGrid, places: HeatPlaces, line: int) -> list[Segment]:
        """Marks under the picture (line 0 of two), numbers below them."""
        quiet = self.get_component_rich_style("heatmap--axis")
        gutter = Segment(" " * places.gutter, quiet)
        columns = places.drawn(grid)[1]
        step = columns / grid.grid_columns
        at = int(self.cursor[1] * step)
        here = grid.first_column(self.cursor[1])
        if line == 0 and places.axis_lines == 2:
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

    @property
    def _at_peak(self) -> bool:
        return self._grid is not None and self.cursor == self._grid.peak

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("peak", "choose"):
            return self._grid is not None and not (action == "peak" and self._at_peak)
        return True

    def action_move(self, rows: int, columns: int) -> None:
        if self._grid is None:
            return
        grid, (row, column) = self._grid, (self.cursor[0] + rows, self.cursor[1] + columns)
        inside = 0 <= row < grid.grid_rows and 0 <= column < grid.grid_columns
        if grid.window is not None and not inside:
            self.post_message(self.Pushed(rows, columns, far=False))
            return
        self._go((max(0, min(grid.grid_rows - 1, row)), max(0, min(grid.grid_columns - 1, column))))

    def action_edge(self, rows: int, columns: int) -> None:
        """Goes to an end of the matrix: of its rows, or of its columns."""
        grid = self._grid
        if grid is None:
            return
        if grid.window is not None:
            self.post_message(self.Pushed(rows * grid.rows, columns * grid.columns, far=True))
        edge = (grid.grid_rows * rows, grid.grid_columns * columns)
        row, column = self.cursor[0] + edge[0], self.cursor[1] + edge[1]
        self._go((max(0, min(grid.grid_rows - 1, row)), max(0, min(grid.grid_columns - 1, column))))

    def action_push(self, rows: int, columns: int) -> None:
        if self._grid is not None and self._grid.window is not None:
            self.post_message(self.Pushed(rows, columns, far=True))
        else:
            self.action_move(rows * FAR, columns * FAR)

    def point_at(self, cell: tuple[int, int]) -> None:
        """Moves the cursor without a message: the cursor of another picture of the same cells has
        moved."""
        if self._grid is not None:
            self._go(cell, tell=False)

    def action_peak(self) -> None:
        if self._grid is not None:
            self._go(self._grid.peak)

    def action_choose(self) -> None:
        if self._grid is not None:
            self.post_message(self.CellChosen())

    def _go(self, cell: tuple[int, int], *, tell: bool = True) -> None:
        if cell == self.cursor:
            return
        before, was_there, self.cursor = self.cursor, self._at_peak, cell
        if was_there or self._at_peak:
            self.refresh_bindings()
        assert self._grid is not None
        grid, places, width = self._grid, self.places, self.size.width
        # Only the lines that change: over a slow line a whole picture stutters.
        changed = {*places.lines_of(grid, before[0]), *places.lines_of(grid, cell[0])}
        axis = Region(0, places.area.y + places.lines(grid), width, places.axis_lines)
        self.refresh(axis, *(Region(0, places.area.y + line, width, 1) for line in sorted(changed)))
        if tell:
            self.post_message(self.CursorMoved(*cell))

    def on_click(self, event: events.Click) -> None:
        cell = self.places.cell_at(self._grid, event.x, event.y) if self._grid else None
        if cell is None:
            return
        event.stop()
        if event.chain == 2 and cell == self.cursor:
            self.action_choose()
        else:
            self._go(cell)

    def on_resize(self) -> None:
        self.post_message(Resized(self))
