"""Answers that are drawn as pictures of a tensor. Their arrays cross as raw bytes."""

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
        pooling: how the elements of a cell are combined.
        cells: float32 `[r, c]`.
        peak_rows, peak_columns: int64 `[r, c]`, row and column of the element that stands for the
            cell.
    """

    rows: int
    columns: int
    pooling: str
    cells: Array
    peak_rows: Array
    peak_columns: Array
