"""The squared error and the signal of each column, which errors weighted by column need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qtui_core.quant.elements import ModelExtent, Segment, TensorLike, elements_of
from qtui_core.quant.layout import rectangles
from qtui_core.quant.parallel import Scratch, fractions_of, map_segments, thread_count
from qtui_core.quant.process import make_plan, needs_first_pass, prepare, round_trip
from qtui_core.quant.scheme import Scheme

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ColumnErrors:
    """Sums over the finite elements of each column of a tensor seen as a matrix, float64
    `[columns]`: of (x - dequantized x)² and of x²."""

    squared_error: Float64
    squared: Float64


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
    often, and holds two numbers a column."""
    elements = elements_of(x)
    columns = elements.matrix[1]
    count = thread_count(elements.count, threads)
    passes = 2 if needs_first_pass(scheme, elements.shape, model_absmax) else 1
    advance = fractions_of(progress, passes * elements.count)
    with np.errstate(all="ignore"):
        plan = make_plan(
            elements, scheme, model_absmax, threads=count, advance=advance, cancelled=cancelled
        )

    def summed(segment: Segment, scratch: Scratch) -> list[tuple[slice, Float64, Float64]]:
        with np.errstate(all="ignore"):
            prepared = prepare(plan, segment, scratch)
            error = round_trip(plan, prepared, scratch)
            x = prepared.values
            np.subtract(x, error, out=error)
        if prepared.nonfinite is not None:
            error[prepared.nonfinite] = 0
            x = np.where(prepared.nonfinite, np.float32(0), x)
        parts = []
        for first, last, left, right in rectangles(segment.start, error.size, columns):
            at = slice(first * columns + left - segment.start, None)
            shape = (last - first, right - left)
            sums = (
                # In float64: float32 sums down a column are not pairwise.
                np.einsum("ij,ij->j", part, part, dtype=np.float64)
                for part in (a[at][: shape[0] * shape[1]].reshape(shape) for a in (error, x))
            )
            parts.append((slice(left, right), *sums))
        return parts

    squared_error, squared = np.zeros(columns), np.zeros(columns)
    for parts in map_segments(
        summed,
        elements.segments(plan.multiple),
        threads=count,
        advance=advance,
        cancelled=cancelled,
    ):
        for where, harm, signal in parts:
            squared_error[where] += harm
            squared[where] += signal
    return ColumnErrors(squared_error, squared)
