"""The error a scheme makes on a tensor, in one pass over the elements.

Elements are quantized, dequantized, compared and forgotten a segment at a time; two passes
where a scale depends on all elements (granularity tensor, model or column, and double
quantization).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qtui_core.answers.tensors import ErrorReport
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.scan.segment_error import NO_ERROR, SegmentError, segment_error
from qtui_core.quant.scan.word_errors import error_by_word
from qtui_core.quant.segments.elements import Elements, ModelExtent, TensorLike, elements_of
from qtui_core.quant.segments.layout import matrix_shape
from qtui_core.quant.segments.parallel import fractions_of, map_segments, thread_count
from qtui_core.quant.segments.process import Plan, first_passes, make_plan
from qtui_core.quant.segments.rounding import ROUNDING_NOISE
from qtui_core.quant.segments.word_table import depends_on_the_word
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.scheme import Scheme


def measure(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> ErrorReport:
    """Quantizes, dequantizes and compares, without keeping codes or values.

    Args:
        x: what `quantize` takes; a reader's rows are asked for in order, on this thread.
        scheme: what to do.
        model_absmax: as for `quantize`.
        progress: called with the fraction done, in (0, 1], on this thread.
        cancelled: asked before each segment.
        threads: how many to use; chosen by size when None, the result is the same.

    Raises:
        Cancelled: `cancelled()` was true.
        UsageError: `x` is not a tensor of real numbers.
    """
    elements = elements_of(x)
    passes = 1 + first_passes(scheme, elements.shape, model_absmax)
    advance = fractions_of(progress, passes * elements.count)
    count = thread_count(elements.count, threads)
    with np.errstate(all="ignore"):
        plan = make_plan(
            elements,
            scheme,
            model_absmax,
            threads=count,
            advance=advance,
            cancelled=cancelled,
        )
    if depends_on_the_word(plan, elements):
        total = error_by_word(plan, elements, advance=advance, cancelled=cancelled)
        return report_of(elements, plan, model_absmax, total)
    found = map_segments(
        lambda segment, scratch: segment_error(plan, segment, scratch),
        elements.segments(plan.multiple),
        threads=count,
        advance=advance,
        cancelled=cancelled,
    )
    return report_of(elements, plan, model_absmax, sum(found, NO_ERROR))


def report_of(
    elements: Elements,
    plan: Plan,
    model_absmax: ModelExtent | None,
    total: SegmentError,
) -> ErrorReport:
    """The report on a tensor whose segments sum up to `total`."""
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
    """Signal to quantization noise in dB; None where there is no noise or no signal."""
    return -10 * math.log10(relative_mse) if relative_mse else None
