"""The error that a scheme makes in one segment of a tensor, by element and in sums."""

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

#: If the largest of some float32 numbers is within these bounds, no square overflows, and those
#: that underflow are negligible beside the largest. Other numbers are summed in float64.
SAFE_MAGNITUDES = (1e-12, 1e15)


@dataclass(frozen=True)
class SegmentError:
    """Sums over one segment.

    Attributes:
        squared_error, squared: sums of (x - dequantized x)² and of x² over the elements that are
            finite and stay finite.
        max_error, max_index: the largest |x - dequantized x|, and its place in the flattened
            tensor.
        nonfinite: the number of NaN and infinities.
        saturated: the number of elements beyond the largest number of the format.
        subnormal: the number of elements below its smallest normal number, zeros not counted.
        overflowed: the number of finite elements that became infinite or NaN.
        squared_step: the sum of the squared rounding steps of the elements, for integers without
            columns in 16 bits; 0.0 for all other schemes.
    """

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
        """The sums over both segments. Of two equal largest errors the earlier one is kept."""
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
    """The error that a scheme makes in each element of a segment; every array is `[size]`. `values`
    and `magnitude` are 0 where an element is not finite or does not stay finite.

    Attributes:
        prepared: the segment and its scales.
        values: the elements.
        magnitude: |x - dequantized x|.
        nonfinite: True where an element is NaN or infinite; None if there is no such element.
        lost: True where a finite element became infinite or NaN; None for schemes that saturate.
    """

    prepared: Prepared
    values: Float32
    magnitude: Float32
    nonfinite: Bool | None
    lost: Bool | None


def element_errors(plan: Plan, segment: Segment, scratch: Scratch) -> ElementErrors:
    """The error of each element. The arrays may be scratch memory or that of the tensor."""
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
    """The sums of the errors of one segment."""
    with np.errstate(all="ignore"):
        found = element_errors(plan, segment, scratch)
        x, magnitude, prepared = found.values, found.magnitude, found.prepared
        # The words of magnitudes have the order of the magnitudes, and integers are searched
        # faster.
        index = int(magnitude.view(np.int32).argmax())
        max_error = float(magnitude[index])
        saturated = subnormal = 0
        if prepared.magnitude is not None:
            subnormal = count_subnormal(prepared.magnitude, plan.coder.smallest_normal, scratch)
        if plan.scheme.family is Family.CAST and prepared.absmax > plan.coder.largest:
            # Elements that overflowed are 0 in x.
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
    """The sum over all elements of the squared step of their group, for integers; 0.0 for other
    formats and for schemes that keep columns in 16 bits."""
    scale, count = prepared.scales.scale, prepared.x.size
    if plan.scheme.family is not Family.INTEGER or plan.decomposition is not None or not scale.size:
        return 0.0
    squares = np.square(scale, dtype=np.float64)
    if isinstance(plan.layout, Runs):
        last = count - plan.layout.size * (scale.size - 1)
        return float(squares[:-1].sum() * plan.layout.size + squares[-1] * last)
    # All groups have equal size, except those at an edge.
    return float(squares.mean() * count)


def count_subnormal(magnitude: Float32, smallest_normal: np.float32, scratch: Scratch) -> int:
    """How many magnitudes are below `smallest_normal`, zeros not counted."""
    # The words of magnitudes have the order of the magnitudes, and integers are compared faster.
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
    """The sum of squares of values whose magnitudes are at most `largest`. It is computed in
    float32 with pairwise summation where that is safe (relative error about 1e-6), otherwise in
    float64. It is not a BLAS dot product, which might start threads of its own."""
    if largest == 0:
        return 0.0
    if not SAFE_MAGNITUDES[0] <= largest <= SAFE_MAGNITUDES[1]:
        return float(np.square(values, dtype=np.float64).sum())
    squares = np.square(values, out=scratch.take("squares", values.size, np.float32))
    return float(squares.sum())
