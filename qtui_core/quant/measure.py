"""The error of a scheme on a tensor, in one pass over the elements.

Elements are quantized, dequantized, compared and dropped one segment at a time. Two passes are
needed if a scale depends on all elements (granularity tensor, model or column, and double
quantization)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qtui_core.answers import ErrorReport
from qtui_core.job import IDLE, Job
from qtui_core.quant.elements import Elements, ModelExtent, Segment, TensorLike
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.layout import Float32, matrix_shape, work_array
from qtui_core.quant.outliers import find_beyond
from qtui_core.quant.plan import Plan, Prepared, SchemeReducer, prepare, round_trip, scan
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.scheme import Family, Scheme

#: If the largest of some float32 numbers is within these bounds, no square overflows, and those
#: that underflow are negligible beside the largest. Other numbers are summed in float64.
SAFE_MAGNITUDES = (1e-12, 1e15)


def element_errors(plan: Plan, segment: Segment) -> tuple[Prepared, Float32, Float32]:
    """A segment with its scales, its elements, and |x - dequantized x| of each, both float32
    `[size]` and 0 where an element is not finite. The elements may be those of the tensor, and the
    errors are a `work_array`."""
    prepared = prepare(plan, segment)
    error = round_trip(plan, prepared, work_array("error", segment.size))
    x = prepared.values
    np.subtract(x, error, out=error)
    if prepared.nonfinite is not None:
        error[prepared.nonfinite] = 0
        x = np.where(prepared.nonfinite, np.float32(0), x)
    return prepared, x, np.abs(error, out=error)


def sum_of_squares(values: Float32, largest: float) -> float:
    """The sum of squares of values whose magnitudes are at most `largest`. It is computed in
    float32 with pairwise summation where that is safe (relative error about 1e-6), otherwise in
    float64. It is not a BLAS dot product, which might start threads of its own."""
    if largest == 0:
        return 0.0
    if not SAFE_MAGNITUDES[0] <= largest <= SAFE_MAGNITUDES[1]:
        return float(np.square(values, dtype=np.float64).sum())
    return float(np.square(values, out=work_array("squares", values.size)).sum())


class ErrorScan(SchemeReducer[tuple[Any, ...]]):
    """The error of a scheme."""

    def begin(self, elements: Elements) -> None:
        self._elements, self._sums = elements, np.zeros(5)
        self._max_error, self._place = 0.0, 0

    def take(self, segment: Segment) -> tuple[Any, ...]:
        """The largest error, its place in the flattened tensor, and five sums."""
        plan = self.plan
        prepared, x, magnitude = element_errors(plan, segment)
        # The words of magnitudes have the order of the magnitudes, and integers are searched
        # faster.
        index = int(magnitude.view(np.int32).argmax())
        largest = float(magnitude[index])
        saturated = subnormal = 0
        if plan.scheme.family is Family.CAST:
            size = np.abs(x)
            subnormal = int(np.count_nonzero((size < plan.coder.smallest_normal) & (size > 0)))
            if prepared.absmax > plan.coder.largest:
                saturated = int(np.count_nonzero(size > plan.coder.largest))
        if plan.decomposition is not None:
            saturated = plan.decomposition.count_beyond(x, segment.start)
        return largest, segment.start + index, (
            sum_of_squares(magnitude, largest),
            sum_of_squares(x, prepared.absmax),
            0 if prepared.nonfinite is None else prepared.nonfinite.sum(),
            saturated,
            subnormal,
        )  # fmt: skip

    def add(self, part: tuple[Any, ...]) -> None:
        largest, place, sums = part
        if largest > self._max_error:  # of two equal ones the earlier is kept
            self._max_error, self._place = largest, place
        self._sums += sums

    def result(self) -> ErrorReport:
        scheme, shape, count = self.scheme, self._elements.shape, self._elements.count
        columns = self.plan.outlier_columns
        squared_error, squared = self._sums[:2].tolist()
        nonfinite, saturated, subnormal = map(int, self._sums[2:])
        finite = count - nonfinite
        power = squared / finite if finite else 0.0
        relative = gaussian = None
        if power > 0:
            relative = squared_error / squared
            gaussian = gaussian_relative_mse(
                scheme, shape, sigma=math.sqrt(power), model_absmax=self.model_absmax
            )
        return ErrorReport(
            scheme=scheme,
            shape=shape,
            count=count,
            nonfinite=nonfinite,
            saturated=saturated,
            subnormal=subnormal,
            mse=squared_error / finite if finite else 0.0,
            relative_mse=relative,
            sqnr_db=decibels(relative),
            max_abs_error=self._max_error,
            max_abs_error_index=divmod(self._place, matrix_shape(shape)[1]) if count else None,
            bits_per_parameter=bits_per_parameter(scheme, shape, columns),
            bytes=quantized_bytes(scheme, shape, columns),
            gaussian_mse=None if gaussian is None else gaussian * power,
            gaussian_relative_mse=gaussian,
            gaussian_sqnr_db=decibels(gaussian),
            outlier_columns=columns,
            signal=squared,
        )


def measure(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    job: Job = IDLE,
) -> ErrorReport:
    """The error of a scheme on a tensor: quantizes, dequantizes and compares, without keeping codes
    or values. Arguments and errors are those of `scan`. A scheme with an outlier threshold takes
    two more readings, which find the outliers of the report; progress does not include them."""
    reducer = ErrorScan(scheme)
    scan(x, [reducer], model_absmax=model_absmax, job=job)
    report = reducer.result()
    if scheme.outlier_threshold is None:
        return report
    outliers = find_beyond(x, scheme.outlier_threshold, job=job.part(0, 0))
    return replace(report, outliers=outliers)


def decibels(relative_mse: float | None) -> float | None:
    """The ratio of signal to quantization noise in dB; None if there is no noise or no signal."""
    return -10 * math.log10(relative_mse) if relative_mse else None
