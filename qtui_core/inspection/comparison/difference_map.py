"""A map of where two matrices differ, small enough to draw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qtui_core.dataclass import dataclass
from qtui_core.packed.views import Rows

_CHUNK = 1 << 19


@dataclass(frozen=True, eq=False)
class DifferenceMap:
    """The largest |b - a| in each cell of a grid over the rows that were read.

    Attributes:
        cells: float32 `[r, c]`; a difference that is not finite counts as zero.
        rows: (first, last + 1) of the tensor's rows in each row of cells.
        column_edges: `[c + 1]`; cell j covers columns column_edges[j] to column_edges[j + 1] - 1.
    """

    cells: NDArray[np.float32]
    rows: tuple[tuple[int, int], ...]
    column_edges: tuple[int, ...]


def difference_map(
    a: Rows, b: Rows, strips: Sequence[tuple[int, int]], rows_out: int, columns_out: int
) -> DifferenceMap:
    """|b - a| over the rows of `strips`, max-pooled to about `rows_out` by `columns_out` cells at
    most. A row of cells does not span a gap between two strips."""
    bands = _bands(strips, rows_out)
    columns = a.shape[1]
    parts = max(1, min(columns, columns_out))
    edges = np.arange(parts + 1, dtype=np.int64) * columns // parts
    cells = np.zeros((len(bands), parts), np.float32)
    height = max(1, _CHUNK // max(1, columns))
    for band, (start, stop) in enumerate(bands):
        for first in range(start, stop, height):
            last = min(stop, first + height)
            with np.errstate(all="ignore"):
                error = np.abs(b.rows(first, last) - a.rows(first, last))
            error[~np.isfinite(error)] = 0
            pooled = np.maximum.reduceat(error.max(axis=0), edges[:-1])
            np.maximum(cells[band], pooled, out=cells[band])
    return DifferenceMap(cells, tuple(bands), tuple(int(e) for e in edges))


def _bands(strips: Sequence[tuple[int, int]], wanted: int) -> list[tuple[int, int]]:
    """Runs of rows, about `wanted` of equal height, none across a gap."""
    total = sum(stop - start for start, stop in strips)
    bands: list[tuple[int, int]] = []
    for start, stop in strips:
        rows = stop - start
        parts = max(1, min(rows, round(wanted * rows / total)))
        bounds = [start + i * rows // parts for i in range(parts + 1)]
        bands += pairwise(bounds)
    return bands
