"""What to do about values that a format cannot hold, or a scale cannot be small enough for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.answers.tensors import ErrorReport, TensorStatistics
from qtui_core.formats import BF16, FP16, FloatFormat, get_format
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.segments.process import make_coder
from qtui_core.quant.verdicts.alternatives import best_at_these_bits
from qtui_core.quant.verdicts.blame import Blame, Cause
from qtui_core.quant.verdicts.case import NOTICEABLE_DB, Case, db_text, power_text
from qtui_core.quant.verdicts.measured_remedy import measured_remedy
from qtui_core.schemes.scheme import Family

#: Of a scheme that takes as many bits as what is stored.
NO_SAVING = "it saves nothing, so leave the tensor as it is stored"


def remedy_of_saturation(
    report: ErrorReport, others: Sequence[ErrorReport], stored_bits: float
) -> str:
    """What to do about elements beyond the largest number of a cast, or of the fp16 in which
    outlier columns are kept."""
    measured = measured_remedy(report, [o for o in others if not o.saturated])
    if measured is not None:
        return measured
    if report.bits_per_parameter >= stored_bits:
        return NO_SAVING
    fmt = FP16 if report.outlier_columns else get_format(report.scheme.format)
    largest = float(fmt.max)
    absmax = largest + report.max_abs_error
    power = max(1, math.ceil(math.log2(absmax / largest)))
    advice = f"divide the tensor by {power_text(power)} or more first"
    if fmt is not BF16 and absmax <= float(BF16.max) and not report.outlier_columns:
        advice += ", or use bf16"
    return advice


def remedy_of_overflow(
    report: ErrorReport, stats: TensorStatistics | None, stored_bits: float
) -> str:
    """What to do about elements that became infinite or NaN."""
    if report.bits_per_parameter >= stored_bits:
        return NO_SAVING
    fmt = get_format(report.scheme.format)
    largest = float(fmt.max)
    advice = "without nosat they would become that number"
    if report.scheme.family is not Family.CAST:
        return f"{advice}, and a scale of the tensor's own would reach them"
    if stats is not None and stats.absmax > largest:
        power = max(1, math.ceil(math.log2(stats.absmax / largest)))
        advice += f"; divide the tensor by {power_text(power)} or more first"
        if fmt is not BF16 and stats.absmax <= float(BF16.max):
            advice += ", or use bf16"
    return advice


def scale_up(case: Case, cause: Cause) -> str:
    """By a power of two, which costs nothing, and what else holds values of this size."""
    if cause.blame is Blame.SMALLEST_SCALE:
        extent = make_coder(case.scheme).smallest_extent
        return f"multiply it by {power_text(math.ceil(math.log2(extent / case.rms)))} or more first"
    fmt = get_format(case.scheme.format)
    assert isinstance(fmt, FloatFormat)
    power = max(1, math.ceil(math.log2(float(fmt.min_normal) / case.rms)))
    while power < 300 and not _is_ordinary(case, case.rms * 2.0**power):
        power += 1
    advice = []
    if case.stats is not None and case.stats.absmax * 2.0**power <= float(fmt.max):
        advice.append(f"multiply it by {power_text(power)} or more first")
    found = best_at_these_bits(case, set())
    if found is not None:
        advice.append(f"use {found[0]}, which would give a Gaussian {db_text(found[1])} dB")
    return ", or ".join(advice) or "use a scheme with scales"


def _is_ordinary(case: Case, sigma: float) -> bool:
    found = decibels(gaussian_relative_mse(case.scheme, case.report.shape, sigma=sigma))
    return found is not None and found > case.ordinary_db - NOTICEABLE_DB / 2
