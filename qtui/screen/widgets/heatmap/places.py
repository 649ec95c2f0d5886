"""Where the cells and axes of a heatmap are in its widget."""

from __future__ import annotations

from textual.geometry import Region

from qtui.screen.widgets.heatmap.grid import HeatGrid
from qtui_core.dataclass import dataclass

# The most columns and lines of cells that are asked for: an answer stays small, and a picture
# is soon drawn. On a larger screen each cell takes several characters.
MAX_COLUMNS, MAX_LINES = 200, 64
# From this height on the axis has two lines (marks and numbers), else one.
TWO_AXIS_LINES_FROM = 11
# A tensor with few rows (a vector has one) is stretched up to this height per row.
TALLEST_CELL = 8
# The share of the room that cells of one size have to fill; else some are one character larger.
FILLED = 0.8


@dataclass(frozen=True)
class HeatPlaces:
    """The layout of a widget of `width` x `height` characters that shows a matrix with `rows` rows,
    whose numbers are at the left. `per_line` rows of the picture share a line."""

    width: int
    height: int
    per_line: int
    rows: int

    @property
    def axis_lines(self) -> int:
        return 2 if self.height >= TWO_AXIS_LINES_FROM else 1

    @property
    def area(self) -> Region:
        """The picture inside the widget, without axes and title."""
        gutter = len(f"{max(self.rows - 1, 0):,}") + 2
        width, height = self.width - gutter - 1, self.height - 1 - self.axis_lines
        return Region(gutter, 1, max(0, width), max(0, height))

    @property
    def gutter(self) -> int:
        """Characters to the left of the picture."""
        return self.area.x

    @property
    def capacity(self) -> tuple[int, int]:
        """Rows and columns of the largest grid that can be drawn, at least 1 x 1."""
        lines, columns = max(1, self.area.height), max(1, self.area.width)
        rows = lines * self.per_line // -(-lines // MAX_LINES)
        return rows, columns // -(-columns // MAX_COLUMNS)

    def drawn(self, grid: HeatGrid) -> tuple[int, int]:
        """Rows and columns of the picture of a grid: multiples of the grid's, unless these would
        leave much of the room empty."""
        area = self.area
        rows, columns = area.height * self.per_line, area.width
        rows = min(rows, grid.grid_rows * TALLEST_CELL * self.per_line)
        return _filled(grid.grid_rows, rows), _filled(grid.grid_columns, columns)

    def lines(self, grid: HeatGrid) -> int:
        """Lines of the picture of a grid."""
        return -(-self.drawn(grid)[0] // self.per_line)

    def cell_at(self, grid: HeatGrid, x: int, y: int) -> tuple[int, int] | None:
        """The cell under a character of the widget; None outside the picture."""
        area, (rows, columns) = self.area, self.drawn(grid)
        row, column = (y - area.y) * self.per_line, x - area.x
        if not (0 <= row < rows and 0 <= column < columns):
            return None
        return row * grid.grid_rows // rows, column * grid.grid_columns // columns

    def lines_of(self, grid: HeatGrid, grid_row: int) -> range:
        """The lines of the picture on which a row of a grid is drawn."""
        rows = self.drawn(grid)[0]
        first = -(-grid_row * rows // grid.grid_rows)
        last = -(-(grid_row + 1) * rows // grid.grid_rows) - 1
        return range(first // self.per_line, max(first, last) // self.per_line + 1)


def _filled(cells: int, room: int) -> int:
    """How much of the room `cells` of one size take; all of it where that would be too little, or
    where there are more cells than room."""
    whole = cells * (room // max(1, cells))
    return whole if whole > FILLED * room else room
