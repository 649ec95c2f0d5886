"""Pictures of a tensor: what is drawn of them crosses as arrays."""

from __future__ import annotations

from qtui.engine.protocol import Array
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class BinCounts:
    """A histogram: int64 `counts` `[bins]` between two `edges`. Both are empty for a tensor
    without a finite element."""

    edges: tuple[float, ...]
    counts: Array


@dataclass(frozen=True)
class MapCells:
    """A map of a tensor that is a matrix of `rows` x `columns`.

    Attributes:
        pooling: how elements became a cell.
        cells: float32 `[r, c]`.
        peak_rows, peak_columns: int64 `[r, c]`: the element that each cell points at.
    """

    rows: int
    columns: int
    pooling: str
    cells: Array
    peak_rows: Array
    peak_columns: Array
