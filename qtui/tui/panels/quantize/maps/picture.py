"""The request for a map, and the map that the engine computes."""

from __future__ import annotations

from typing import Any

from qtui.screen.widgets.heatmap.grid import HeatGrid, Window
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class MapRequest:
    """A kind of map under its schemes, pooled to at most `rows` x `columns` cells of a window
    (None: of the whole tensor)."""

    kind: str
    schemes: tuple[str, ...]
    pooling: str
    window: Window | None
    rows: int
    columns: int

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the request."""
        return {
            "kind": self.kind,
            "schemes": list(self.schemes),
            "pooling": self.pooling,
            "window": None if self.window is None else list(self.window),
            "rows": self.rows,
            "columns": self.columns,
        }


@dataclass(frozen=True)
class MapPicture:
    """The cells, and for each the element that the cursor points at there: the largest in
    magnitude, or with nearest pooling the one in the middle."""

    request: MapRequest
    grid: HeatGrid
    peak_rows: tuple[int, ...]
    peak_columns: tuple[int, ...]

    def element_at(self, grid_row: int, grid_column: int) -> tuple[int, int]:
        """The row and column of a cell's element in the tensor, read as a matrix."""
        index = grid_row * self.grid.grid_columns + grid_column
        return self.peak_rows[index], self.peak_columns[index]
