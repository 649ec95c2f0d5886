"""The squared error and the signal of each column and row, which errors weighted by either
need."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import ModelExtent, Segment, TensorLike, elements_of
from qtui_core.quant.segments.layout import rectangles
from qtui_core.quant.segments.parallel import Scratch, fractions_of, map_segments, thread_count
from qtui_core.quant.segments.process import first_passes, make_plan, prepare, round_trip
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
class _Part:
    """The sums of a rectangle, and where it is."""

    columns: slice
    rows: slice
    squared_error: Float64
    squared: Float64
    row_squared_error: Float64


def column_errors(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> ColumnErrors:
    """What a scheme does to each column. Arguments and errors as `measure`; reads the tensor as
    often, and holds two numbers a column and one a row."""
    elements = elements_of(x)
    rows, columns = elements.matrix
    count = thread_count(elements.count, threads)
    passes = 1 + first_passes(scheme, elements.shape, model_absmax)
    advance = fractions_of(progress, passes * elements.count)
    with np.errstate(all="ignore"):
        plan = make_plan(
            elements, scheme, model_absmax, threads=count, advance=advance, cancelled=cancelled
        )

    def summed(segment: Segment, scratch: Scratch) -> list[_Part]:
        with np.errstate(all="ignore"):
            prepared = prepare(plan, segment, scratch)
            error = round_trip(plan, prepared, scratch)
            x = prepared.values
            np.subtract(x, error, out=error)
        if prepared.nonfinite is not None:
            error[prepared.nonfinite] = 0
            x = np.where(prepared.nonfinite, np.float32(0), x)
        if not scheme.saturate:
            lost = ~np.isfinite(error)  # as measure leaves them out
            error[lost] = 0
            x = np.where(lost, np.float32(0), x)
        parts = []
        for first, last, left, right in rectangles(segment.start, error.size, columns):
            at = slice(first * columns + left - segment.start, None)
            shape = (last - first, right - left)
            wrong, value = (a[at][: shape[0] * shape[1]].reshape(shape) for a in (error, x))
            parts.append(
                _Part(
                    slice(left, right),
                    slice(first, last),
                    # In float64: float32 sums down a column are not pairwise.
                    np.einsum("ij,ij->j", wrong, wrong, dtype=np.float64),
                    np.einsum("ij,ij->j", value, value, dtype=np.float64),
                    np.einsum("ij,ij->i", wrong, wrong, dtype=np.float64),
                )
            )
        return parts

    total = ColumnErrors(np.zeros(columns), np.zeros(columns), np.zeros(rows))
    for parts in map_segments(
        summed,
        elements.segments(plan.multiple),
        threads=count,
        advance=advance,
        cancelled=cancelled,
    ):
        for part in parts:
            total.squared_error[part.columns] += part.squared_error
            total.squared[part.columns] += part.squared
            total.row_squared_error[part.rows] += part.row_squared_error
    return total
