"""The error of a scheme on a tensor, in one pass over the elements.

Elements are quantized, dequantized, compared and dropped one segment at a time. Two passes are
needed if a scale depends on all elements (granularity tensor, model or column, and double
quantization)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

import numpy as np
import numpy.typing as npt

from qtui_core.answers.tensors import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.scan.outliers import find_beyond
from qtui_core.quant.scan.scan import SchemeReducer, scan
from qtui_core.quant.segments.elements import Elements, Float32, ModelExtent, Segment, TensorLike
from qtui_core.quant.segments.layout import Runs, matrix_shape
from qtui_core.quant.segments.parallel import CACHED, Scratch, Watch
from qtui_core.quant.segments.process import Plan, Prepared, prepare, round_trip
from qtui_core.quant.segments.rounding import ROUNDING_NOISE
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.scheme import Family, Scheme

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


class ErrorScan(SchemeReducer[SegmentError]):
    """The error of a scheme."""

    def begin(self, elements: Elements) -> None:
        self._elements, self._total = elements, NO_ERROR

    def take(self, segment: Segment, scratch: Scratch) -> SegmentError:
        return segment_error(self.plan, segment, scratch)

    def add(self, part: SegmentError) -> None:
        self._total += part

    def result(self) -> ErrorReport:
        return report_of(self._elements, self.plan, self.model_absmax, self._total)


def measure(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    **watch: Unpack[Watch],
) -> ErrorReport:
    """The error of a scheme on a tensor: quantizes, dequantizes and compares, without keeping codes
    or values. Arguments and errors are those of `scan`. A scheme with an outlier threshold takes
    two more readings, which find the outliers of the report; progress does not include them."""
    found = ErrorScan(scheme)
    scan(x, [found], model_absmax=model_absmax, **watch)
    report = found.result()
    if scheme.outlier_threshold is None:
        return report
    unheard = Watch(cancelled=watch.get("cancelled"), threads=watch.get("threads"))
    return replace(report, outliers=find_beyond(x, scheme.outlier_threshold, **unheard))


def report_of(
    elements: Elements,
    plan: Plan,
    model_absmax: ModelExtent | None,
    total: SegmentError,
) -> ErrorReport:
    """The report on a tensor whose segments sum to `total`."""
    scheme, shape = plan.scheme, elements.shape
    finite = elements.count - total.nonfinite - total.overflowed
    columns = matrix_shape(shape)[1]
    mse = total.squared_error / finite if finite else 0.0
    power = total.squared / finite if finite else 0.0
    noise = ROUNDING_NOISE[scheme.rounding]
    relative = gaussian = None
    if power > 0:
        relative = total.squared_error / total.squared
        gaussian = gaussian_relative_mse(
            scheme, shape, sigma=math.sqrt(power), model_absmax=model_absmax
        )
    return ErrorReport(
        scheme=scheme,
        shape=shape,
        count=elements.count,
        nonfinite=total.nonfinite,
        saturated=total.saturated,
        subnormal=total.subnormal,
        mse=mse,
        relative_mse=relative,
        sqnr_db=decibels(relative),
        max_abs_error=total.max_error,
        max_abs_error_index=divmod(total.max_index, columns) if elements.count else None,
        bits_per_parameter=bits_per_parameter(scheme, shape, plan.outlier_columns),
        bytes=quantized_bytes(scheme, shape, plan.outlier_columns),
        gaussian_mse=None if gaussian is None else gaussian * power,
        gaussian_relative_mse=gaussian,
        gaussian_sqnr_db=decibels(gaussian),
        overflowed=total.overflowed,
        outlier_columns=plan.outlier_columns,
        signal=total.squared,
        even_mse=noise * total.squared_step / elements.count if total.squared_step else None,
    )


def decibels(relative_mse: float | None) -> float | None:
    """The ratio of signal to quantization noise in dB; None if there is no noise or no signal."""
    return -10 * math.log10(relative_mse) if relative_mse else None
