"""Where the cells and axes of a heatmap are in its widget."""

from __future__ import annotations

from textual.geometry import Region

from qtui.screen.widgets.heatmap.grid import HeatGrid
from qtui_core.dataclass import dataclass

# 120x40 half blocks are the most that a slow SSH line redraws without a stutter.
MAX_COLUMNS, MAX_LINES = 120, 40
# From this height on the axis has two lines (marks and numbers), else one.
TWO_AXIS_LINES_FROM = 11
# A tensor with few rows (a vector has one) is stretched up to this height per row.
TALLEST_CELL = 8


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
        lines = max(1, min(MAX_LINES, self.area.height))
        return lines * self.per_line, max(1, min(MAX_COLUMNS, self.area.width))

    def drawn(self, grid: HeatGrid) -> tuple[int, int]:
        """Rows and columns of the picture of a grid: multiples of the grid's."""
        area = self.area
        rows = min(MAX_LINES, area.height) * self.per_line
        columns = min(MAX_COLUMNS, area.width)
        tallest = TALLEST_CELL * self.per_line
        if grid.grid_rows <= rows:
            rows = grid.grid_rows * min(rows // grid.grid_rows, tallest)
        if grid.grid_columns <= columns:
            columns = grid.grid_columns * (columns // grid.grid_columns)
        return rows, columns

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
