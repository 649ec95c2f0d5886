"""What a scheme does to the elements of one segment, and the sums of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import Float32, Segment
from qtui_core.quant.segments.layout import Runs
from qtui_core.quant.segments.parallel import CACHED, Scratch
from qtui_core.quant.segments.process import Plan, Prepared, prepare, round_trip
from qtui_core.schemes.scheme import Family

Bool = npt.NDArray[np.bool_]

#: The squares of float32 numbers do not overflow if the largest is between these, and those that
#: underflow are negligible beside the largest; other numbers are summed in float64.
SAFE_MAGNITUDES = (1e-12, 1e15)


@dataclass(frozen=True)
class SegmentError:
    """Sums over one segment. `squared_step` is that of the squares of the steps that elements are
    rounded in, of integers without columns apart; 0.0 of everything else."""

    squared_error: float
    squared: float
    max_error: float
    max_index: int
    nonfinite: int
    saturated: int
    subnormal: int
    overflowed: int = 0
    squared_step: float = 0.0

    def __add__(self, later: SegmentError) -> SegmentError:
        """Both together; of two equal errors the earlier is where the largest is."""
        largest = later if later.max_error > self.max_error else self
        return SegmentError(
            self.squared_error + later.squared_error,
            self.squared + later.squared,
            largest.max_error,
            largest.max_index,
            self.nonfinite + later.nonfinite,
            self.saturated + later.saturated,
            self.subnormal + later.subnormal,
            self.overflowed + later.overflowed,
            self.squared_step + later.squared_step,
        )


NO_ERROR = SegmentError(0.0, 0.0, 0.0, 0, 0, 0, 0)


@dataclass(frozen=True)
class ElementErrors:
    """What a scheme does to each element of a segment, `[size]` each. Where an element is not
    finite or does not stay so, `values` and `magnitude` are 0.

    Attributes:
        values: the elements.
        magnitude: |x - dequantized x|.
        nonfinite: where an element is NaN or infinite; None where none is.
        lost: where a finite one became infinite or NaN; None where a scheme saturates.
    """

    prepared: Prepared
    values: Float32
    magnitude: Float32
    nonfinite: Bool | None
    lost: Bool | None


def element_errors(plan: Plan, segment: Segment, scratch: Scratch) -> ElementErrors:
    """The error of each element. The arrays may be of the scratch memory or of the tensor."""
    prepared = prepare(plan, segment, scratch)
    error = round_trip(plan, prepared, scratch)
    x = prepared.values
    np.subtract(x, error, out=error)
    lost = None
    if prepared.nonfinite is not None:
        error[prepared.nonfinite] = 0
        x = np.where(prepared.nonfinite, np.float32(0), x)
    if not plan.scheme.saturate:
        lost = ~np.isfinite(error)
        error[lost] = 0
        x = np.where(lost, np.float32(0), x)
    return ElementErrors(prepared, x, np.abs(error, out=error), prepared.nonfinite, lost)


def segment_error(plan: Plan, segment: Segment, scratch: Scratch) -> SegmentError:
    """Sums of one segment."""
    with np.errstate(all="ignore"):
        found = element_errors(plan, segment, scratch)
        x, magnitude, prepared = found.values, found.magnitude, found.prepared
        # Magnitudes are in the order of their words; integers are searched faster.
        index = int(magnitude.view(np.int32).argmax())
        max_error = float(magnitude[index])
        saturated = subnormal = 0
        if prepared.magnitude is not None:
            subnormal = count_subnormal(prepared.magnitude, plan.coder.smallest_normal, scratch)
        if plan.scheme.family is Family.CAST and prepared.absmax > plan.coder.largest:
            # What overflowed is 0 here.
            saturated = int(np.count_nonzero(np.abs(x) > plan.coder.largest))
        if plan.decomposition is not None:
            saturated = plan.decomposition.count_beyond(x, segment.start)
        return SegmentError(
            squared_error=sum_of_squares(magnitude, max_error, scratch),
            squared=sum_of_squares(x, prepared.absmax, scratch),
            max_error=max_error,
            max_index=segment.start + index,
            nonfinite=0 if found.nonfinite is None else int(np.count_nonzero(found.nonfinite)),
            saturated=saturated,
            subnormal=subnormal,
            overflowed=0 if found.lost is None else int(np.count_nonzero(found.lost)),
            squared_step=squared_steps(plan, prepared),
        )


def squared_steps(plan: Plan, prepared: Prepared) -> float:
    """The sum of the squared steps of integers, a group weighing as its elements; 0.0 of other
    formats, and beside columns that are kept apart."""
    scale, count = prepared.scales.scale, prepared.x.size
    if plan.scheme.family is not Family.INTEGER or plan.decomposition is not None or not scale.size:
        return 0.0
    squares = np.square(scale, dtype=np.float64)
    if isinstance(plan.layout, Runs):
        last = count - plan.layout.size * (scale.size - 1)
        return float(squares[:-1].sum() * plan.layout.size + squares[-1] * last)
    # Groups of equal size, except those at an edge.
    return float(squares.mean() * count)


def count_subnormal(magnitude: Float32, smallest_normal: np.float32, scratch: Scratch) -> int:
    """How many magnitudes are below `smallest_normal`, zeros not counted."""
    # Magnitudes are in the order of their words, and integers are compared faster.
    words, limit = magnitude.view(np.int32), smallest_normal.view(np.int32)
    buffer = scratch.take("below", CACHED, np.bool_)
    count = 0
    for start in range(0, words.size, CACHED):
        part = words[start : start + CACHED]
        least = part.min()
        if least < limit:
            below = np.less(part, limit, out=buffer[: part.size])
            count += int(np.count_nonzero(below))
            if least == 0:
                count -= part.size - int(np.count_nonzero(part))
    return count


def sum_of_squares(values: Float32, largest: float, scratch: Scratch) -> float:
    """The sum of squares of values of magnitudes up to `largest`; in float32 with pairwise
    summation where that is safe (relative error about 1e-6), in float64 elsewhere. Not a BLAS
    dot product, which may start threads of its own."""
    if largest == 0:
        return 0.0
    if not SAFE_MAGNITUDES[0] <= largest <= SAFE_MAGNITUDES[1]:
        return float(np.square(values, dtype=np.float64).sum())
    squares = np.square(values, out=scratch.take("squares", values.size, np.float32))
    return float(squares.sum())
