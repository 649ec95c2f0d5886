"""The error of a scheme on a tensor, in one pass over the elements.

Elements are quantized, dequantized, compared and dropped one segment at a time. Two passes are
needed if a scale depends on all elements (granularity tensor, model or column, and double
quantization).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

from qtui_core.answers.tensors import ErrorReport
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.scan.outliers import find_beyond
from qtui_core.quant.scan.scan import SchemeReducer, scan
from qtui_core.quant.scan.segment_error import (
    NO_ERROR,
    SegmentError,
    segment_error,
)
from qtui_core.quant.segments.elements import (
    Elements,
    ModelExtent,
    Segment,
    TensorLike,
)
from qtui_core.quant.segments.layout import matrix_shape
from qtui_core.quant.segments.parallel import Scratch, Watch
from qtui_core.quant.segments.process import Plan
from qtui_core.quant.segments.rounding import ROUNDING_NOISE
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.scheme import Scheme


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
