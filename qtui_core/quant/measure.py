"""The error of a scheme on a tensor, in one pass over the elements.

Elements are quantized, dequantized, compared and dropped one segment at a time. Two passes are
needed if a scale depends on all elements (granularity tensor, model or column, and double
quantization)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

import numpy as np

from qtui_core.answers.tensors import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.quant.elements import Elements, ModelExtent, Segment, TensorLike
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.layout import Float32, matrix_shape
from qtui_core.quant.outliers import find_beyond
from qtui_core.quant.plan import Plan, Prepared, SchemeReducer, prepare, round_trip, scan
from qtui_core.quant.reading import Watch, without_progress
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.scheme import Family, Scheme

#: If the largest of some float32 numbers is within these bounds, no square overflows, and those
#: that underflow are negligible beside the largest. Other numbers are summed in float64.
SAFE_MAGNITUDES = (1e-12, 1e15)


@dataclass(frozen=True)
class SegmentError:
    """Sums over one segment.

    Attributes:
        squared_error, squared: sums of (x - dequantized x)² and of x² over the elements that are
            finite.
        max_error, max_index: the largest |x - dequantized x|, and its place in the flattened
            tensor.
        nonfinite: the number of NaN and infinities.
        saturated: the number of elements beyond the largest number of the format.
        subnormal: the number of elements below its smallest normal number, zeros not counted.
    """

    squared_error: float
    squared: float
    max_error: float
    max_index: int
    nonfinite: int
    saturated: int
    subnormal: int

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
        )


NO_ERROR = SegmentError(0.0, 0.0, 0.0, 0, 0, 0, 0)


@dataclass(frozen=True)
class ElementErrors:
    """The error that a scheme makes in each element of a segment; every array is `[size]`, and 0
    where an element is not finite.

    Attributes:
        prepared: the segment and its scales.
        values: the elements, which may be those of the tensor.
        magnitude: |x - dequantized x|.
    """

    prepared: Prepared
    values: Float32
    magnitude: Float32


def element_errors(plan: Plan, segment: Segment) -> ElementErrors:
    """The error of each element."""
    prepared = prepare(plan, segment)
    error = round_trip(plan, prepared)
    x = prepared.values
    np.subtract(x, error, out=error)
    if prepared.nonfinite is not None:
        error[prepared.nonfinite] = 0
        x = np.where(prepared.nonfinite, np.float32(0), x)
    return ElementErrors(prepared, x, np.abs(error, out=error))


def segment_error(plan: Plan, segment: Segment) -> SegmentError:
    """The sums of the errors of one segment."""
    with np.errstate(all="ignore"):
        found = element_errors(plan, segment)
        x, magnitude, prepared = found.values, found.magnitude, found.prepared
        # The words of magnitudes have the order of the magnitudes, and integers are searched
        # faster.
        index = int(magnitude.view(np.int32).argmax())
        saturated = subnormal = 0
        if plan.scheme.family is Family.CAST:
            size = np.abs(x)
            subnormal = int(np.count_nonzero((size < plan.coder.smallest_normal) & (size > 0)))
            if prepared.absmax > plan.coder.largest:
                saturated = int(np.count_nonzero(size > plan.coder.largest))
        if plan.decomposition is not None:
            saturated = plan.decomposition.count_beyond(x, segment.start)
        return SegmentError(
            squared_error=sum_of_squares(magnitude, float(magnitude[index])),
            squared=sum_of_squares(x, prepared.absmax),
            max_error=float(magnitude[index]),
            max_index=segment.start + index,
            nonfinite=0 if prepared.nonfinite is None else int(prepared.nonfinite.sum()),
            saturated=saturated,
            subnormal=subnormal,
        )


def sum_of_squares(values: Float32, largest: float) -> float:
    """The sum of squares of values whose magnitudes are at most `largest`. It is computed in
    float32 with pairwise summation where that is safe (relative error about 1e-6), otherwise in
    float64. It is not a BLAS dot product, which might start threads of its own."""
    if largest == 0:
        return 0.0
    if not SAFE_MAGNITUDES[0] <= largest <= SAFE_MAGNITUDES[1]:
        return float(np.square(values, dtype=np.float64).sum())
    return float(np.square(values).sum())


class ErrorScan(SchemeReducer[SegmentError]):
    """The error of a scheme."""

    def begin(self, elements: Elements) -> None:
        self._elements, self._total = elements, NO_ERROR

    def take(self, segment: Segment) -> SegmentError:
        return segment_error(self.plan, segment)

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
    outliers = find_beyond(x, scheme.outlier_threshold, **without_progress(watch))
    return replace(report, outliers=outliers)


def report_of(
    elements: Elements,
    plan: Plan,
    model_absmax: ModelExtent | None,
    total: SegmentError,
) -> ErrorReport:
    """The report on a tensor whose segments sum to `total`."""
    scheme, shape = plan.scheme, elements.shape
    finite = elements.count - total.nonfinite
    columns = matrix_shape(shape)[1]
    mse = total.squared_error / finite if finite else 0.0
    power = total.squared / finite if finite else 0.0
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
        outlier_columns=plan.outlier_columns,
        signal=total.squared,
    )


def decibels(relative_mse: float | None) -> float | None:
    """The ratio of signal to quantization noise in dB; None if there is no noise or no signal."""
    return -10 * math.log10(relative_mse) if relative_mse else None
