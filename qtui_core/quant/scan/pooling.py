"""Pools the elements of a tensor into the cells of a grid, piece by piece."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.layout import rectangles
from qtui_core.quant.segments.parallel import Scratch

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

#: All bits of a float32 except the sign. Read as integers, magnitudes have the same order as the
#: floats, with NaN above infinity.
MAGNITUDE = np.uint32(0x7FFF_FFFF)


class Pooling(StrEnum):
    """How the elements of a cell become one number. A single NaN makes the cell NaN, except under
    NEAREST.

    MAX: the largest magnitude, with its sign, so that no single spike is lost.
    MEAN: the mean.
    RMS: the root of the mean square. On a map of errors its square is the cell's part of the MSE.
    NEAREST: the element in the middle of the cell.
    """

    MAX = "max"
    MEAN = "mean"
    RMS = "rms"
    NEAREST = "nearest"


@dataclass(frozen=True)
class Window:
    """Rows [row_start, row_stop) and columns [column_start, column_stop) of a tensor seen as a
    matrix."""

    row_start: int
    row_stop: int
    column_start: int
    column_stop: int

    @property
    def size(self) -> tuple[int, int]:
        return self.row_stop - self.row_start, self.column_stop - self.column_start


@dataclass(frozen=True, eq=False)
class PooledPart:
    """The contribution of a rectangle of elements to the cells that it overlaps. All arrays are
    `[r, c]`: the bits of the largest magnitude, the value that has it, the position of that
    element, and the sum that the mean is computed from."""

    rows: slice
    columns: slice
    bits: Int64
    values: Float32
    element_rows: Int64
    element_columns: Int64
    sums: Float64 | None = None


class Grid:
    """A grid of cells over a window of a matrix with `width` columns. `pool` may run in any thread;
    `add` takes its results in the order of the tensor."""

    def __init__(
        self, window: Window, width: int, rows_out: int, columns_out: int, pooling: Pooling
    ) -> None:
        self.window, self.width, self.pooling = window, width, pooling
        height, across = window.size
        self.row_edges = window.row_start + _edges(height, rows_out)
        self.column_edges = window.column_start + _edges(across, columns_out)
        size = len(self.row_edges) - 1, len(self.column_edges) - 1
        self._bits = np.full(size, -1, np.int64)
        self._values = np.zeros(size, np.float32)
        self._rows, self._columns = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._sums = np.zeros(size)

    def pool(self, values: Float32, start: int, scratch: Scratch) -> list[PooledPart]:
        """The contributions of the elements that begin at `start` of the flattened matrix."""
        parts = []
        low, high = self.window.column_start, self.window.column_stop
        for first, last, left, right in rectangles(start, values.size, self.width):
            begin, end = max(left, low), min(right, high)
            if begin >= end:
                continue
            at = first * self.width + left - start
            whole = values[at : at + (last - first) * (right - left)].reshape(last - first, -1)
            tile = whole[:, begin - left : end - left]
            if self.pooling is Pooling.NEAREST:
                parts.append(self._middles(tile, first, begin))
            else:
                parts.append(self._peaks(tile, first, begin, scratch))
        return parts

    def _peaks(self, tile: Float32, first: int, left: int, scratch: Scratch) -> PooledPart:
        height, width = tile.shape
        rows = _bins(self.row_edges, first, first + height)
        columns = _bins(self.column_edges, left, left + width)
        row_starts = _starts(self.row_edges, rows, first)
        column_starts = _starts(self.column_edges, columns, left)

        def reduced(which: np.ufunc, of: npt.NDArray[Any]) -> npt.NDArray[Any]:
            by_rows = which.reduceat(of, row_starts, axis=0)
            cells: npt.NDArray[Any] = which.reduceat(by_rows, column_starts, axis=1)
            return cells

        # Magnitude and place in one integer. Its maximum is the largest magnitude, at the first
        # place that has it.
        key = scratch.take("key", tile.shape, np.uint64)
        np.bitwise_and(tile.view(np.uint32), MAGNITUDE, out=key)
        key <<= np.uint64(32)
        key |= np.arange(tile.size, dtype=np.uint32)[::-1].reshape(tile.shape)
        best = reduced(np.maximum, key)
        place = tile.size - 1 - (best & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        row, column = place // width, place % width
        sums = None
        if self.pooling is Pooling.MEAN:
            sums = reduced(np.add, tile.astype(np.float64))
        elif self.pooling is Pooling.RMS:
            sums = reduced(np.add, np.square(tile, dtype=np.float64))
        return PooledPart(
            rows,
            columns,
            bits=(best >> np.uint64(32)).astype(np.int64),
            values=tile[row, column],
            element_rows=row + first,
            element_columns=column + left,
            sums=sums,
        )

    def _middles(self, tile: Float32, first: int, left: int) -> PooledPart:
        rows, row = _inside(_middle(self.row_edges), first, first + tile.shape[0])
        columns, column = _inside(_middle(self.column_edges), left, left + tile.shape[1])
        values = tile[np.ix_(row - first, column - left)]
        places = np.broadcast_arrays(row[:, None], column[None, :])
        return PooledPart(rows, columns, np.zeros(values.shape, np.int64), values, *places)

    def add(self, parts: list[PooledPart]) -> None:
        """Adds the contributions of the next elements."""
        for part in parts:
            at = part.rows, part.columns
            larger = part.bits > self._bits[at]
            for held, found in (
                (self._values, part.values),
                (self._rows, part.element_rows),
                (self._columns, part.element_columns),
                (self._bits, part.bits),
            ):
                held[at] = np.where(larger, found, held[at])
            if part.sums is not None:
                self._sums[at] += part.sums

    def finished(self) -> tuple[Float32, Int64, Int64]:
        """The cells, and the row and column of the element that each cell points at."""
        if self.pooling not in (Pooling.MEAN, Pooling.RMS):
            return self._values, self._rows, self._columns
        counts = np.multiply.outer(np.diff(self.row_edges), np.diff(self.column_edges))
        with np.errstate(over="ignore", invalid="ignore"):
            means = self._sums / np.maximum(counts, 1)
            means = np.sqrt(means) if self.pooling is Pooling.RMS else means
            return means.astype(np.float32), self._rows, self._columns


def _edges(length: int, wanted: int) -> Int64:
    """The boundaries that divide `length` into `wanted` nearly equal parts, none of them empty."""
    parts = max(0, min(length, wanted))
    return np.arange(parts + 1, dtype=np.int64) * length // max(1, parts)


def _bins(edges: Int64, first: int, last: int) -> slice:
    """The parts that overlap [first, last)."""
    low = int(np.searchsorted(edges, first, side="right")) - 1
    return slice(low, int(np.searchsorted(edges, last, side="left")))


def _starts(edges: Int64, bins: slice, first: int) -> Int64:
    """Where each of those parts starts in a piece that itself starts at `first`."""
    return np.maximum(edges[bins.start : bins.stop] - first, 0)


def _middle(edges: Int64) -> Int64:
    return (edges[:-1] + edges[1:]) // 2


def _inside(places: Int64, first: int, last: int) -> tuple[slice, Int64]:
    """Which of the ascending places lie in [first, last), as a slice, and those places."""
    low, high = (int(np.searchsorted(places, end)) for end in (first, last))
    return slice(low, high), places[low:high]
