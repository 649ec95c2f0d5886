"""The squared error and the signal of each column and row, which errors weighted by either
need."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.scan.scan import SchemeReducer, scan
from qtui_core.quant.scan.segment_error import element_errors
from qtui_core.quant.segments.elements import Elements, ModelExtent, Segment, TensorLike
from qtui_core.quant.segments.layout import rectangles
from qtui_core.quant.segments.parallel import Scratch, Watch
from qtui_core.schemes.scheme import Scheme

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ColumnErrors:
    """Sums over the elements that are finite and stay so, of each column of a tensor seen as a
    matrix, float64 `[columns]`: of (x - dequantized x)² and of x²; and the first over each row,
    `[rows]`."""

    squared_error: Float64
    squared: Float64
    row_squared_error: Float64


@dataclass(frozen=True, eq=False)
class _RectangleSums:
    """The sums of a rectangle, and where it is."""

    columns: slice
    rows: slice
    squared_error: Float64
    squared: Float64
    row_squared_error: Float64


class ColumnErrorScan(SchemeReducer[list[_RectangleSums]]):
    """The error of a scheme by column and row; two numbers a column and one a row are held."""

    def begin(self, elements: Elements) -> None:
        rows, self._columns = elements.matrix
        self._total = ColumnErrors(np.zeros(self._columns), np.zeros(self._columns), np.zeros(rows))

    def take(self, segment: Segment, scratch: Scratch) -> list[_RectangleSums]:
        found = element_errors(self.plan, segment, scratch)
        parts = []
        for first, last, left, right in rectangles(segment.start, segment.size, self._columns):
            at = first * self._columns + left - segment.start
            shape = (last - first, right - left)
            wrong, value = (
                values[at : at + shape[0] * shape[1]].reshape(shape)
                for values in (found.magnitude, found.values)
            )
            parts.append(
                _RectangleSums(
                    slice(left, right),
                    slice(first, last),
                    # In float64: float32 sums down a column are not pairwise.
                    np.einsum("ij,ij->j", wrong, wrong, dtype=np.float64),
                    np.einsum("ij,ij->j", value, value, dtype=np.float64),
                    np.einsum("ij,ij->i", wrong, wrong, dtype=np.float64),
                )
            )
        return parts

    def add(self, part: list[_RectangleSums]) -> None:
        for each in part:
            self._total.squared_error[each.columns] += each.squared_error
            self._total.squared[each.columns] += each.squared
            self._total.row_squared_error[each.rows] += each.row_squared_error

    def result(self) -> ColumnErrors:
        return self._total


def column_errors(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    **watch: Unpack[Watch],
) -> ColumnErrors:
    """What a scheme does to each column. Arguments and errors as `scan`."""
    found = ColumnErrorScan(scheme)
    scan(x, [found], model_absmax=model_absmax, **watch)
    return found.result()
