"""One sentence about what a measured error means, written from the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.answers.tensors import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.formats import get_format
from qtui_core.quant.verdicts.advantage import find_advantage
from qtui_core.quant.verdicts.case import EXACT_DB, NOTICEABLE_DB, Case, db_text, make_case, number
from qtui_core.quant.verdicts.cause import find_cause
from qtui_core.quant.verdicts.range_remedy import remedy_of_overflow, remedy_of_saturation
from qtui_core.quant.verdicts.remedy import general_remedy, plain_remedy, remedy_of


def explain(
    reports: ErrorReport | Sequence[ErrorReport],
    stats: TensorStatistics | None = None,
    outliers: OutlierReport | None = None,
    *,
    stored_bits: float = math.inf,
) -> str:
    """What the error of a scheme on a tensor means and what to do about it.

    Args:
        reports: the measurement in question; more after it are alternatives measured on the
            same tensor, and the best of them is named where it is better. What was not
            measured is said to be expected of a Gaussian, and computed.
        stats, outliers: of the same tensor; the sentence says less without them.
        stored_bits: bits per parameter that the tensor takes as it is. Nothing that takes as
            many is advised.
    """
    report, *others = [reports] if isinstance(reports, ErrorReport) else list(reports)
    sentence = _explain(report, others, stats, outliers, stored_bits)
    if report.scheme.rounding == "stochastic" and report.scheme.clips and report.mse:
        return (
            f"{sentence.removesuffix('.')}; stochastic rounding keeps the mean of values between "
            f"the levels only, and {report.scheme.format} clips what lies beyond the last level: "
            f"that is biased inward."
        )
    return sentence


def _explain(
    report: ErrorReport,
    others: Sequence[ErrorReport],
    stats: TensorStatistics | None,
    outliers: OutlierReport | None,
    stored_bits: float,
) -> str:
    # What lost elements is measured on the rest of them only.
    others = [o for o in others if not o.overflowed and o.bits_per_parameter < stored_bits]
    name = str(report.scheme)
    if report.count == 0:
        return "This tensor has no elements, so there is nothing to quantize."
    if report.nonfinite:
        return (
            f"{number(report.nonfinite, 'element is', 'elements are')} NaN or infinite: find "
            f"out where they come from first; every figure is over the finite rest."
        )
    if report.overflowed:
        became = "infinite" if get_format(report.scheme.format).has_infinity else "NaN"
        return (
            f"{number(report.overflowed, 'element lies', 'elements lie')} beyond the largest "
            f"number of {report.scheme.format} and became {became}: "
            f"{remedy_of_overflow(report, stats, stored_bits)}."
        )
    if report.relative_mse is None:
        return f"Every element is zero, and {name} keeps zero exactly."
    if report.saturated:
        kept = report.outlier_columns > 0
        what = "fp16, in which outlier columns are kept," if kept else name
        return (
            f"{number(report.saturated, 'element lies', 'elements lie')} beyond the largest "
            f"number of {what} and became it: {remedy_of_saturation(report, others, stored_bits)}."
        )
    if report.relative_mse == 0:
        return f"{name} keeps every element of this tensor exactly."
    case = make_case(report, stats, outliers, stored_bits)
    if case.db > EXACT_DB and case.few_weigh_all:
        largest = number(outliers.count if outliers else 1, "element weighs", "elements weigh")
        return (
            f"{name} gives {db_text(case.db)} dB, which says little: {largest} more than all "
            f"others together; look at the map, where the largest error is "
            f"{report.max_abs_error:.3g}."
        )
    if case.db > EXACT_DB:
        return (
            f"{name} keeps every element of this tensor to within the rounding of float32 "
            f"({db_text(case.db)} dB)."
        )
    if case.worse > NOTICEABLE_DB:
        cause = find_cause(case)
        remedy = _no_saving(case) or remedy_of(case, cause, others)
        return f"{_worse(case)}: {cause.text}; {remedy}."
    if case.worse < -NOTICEABLE_DB:
        return (
            f"{name} gives {db_text(case.db)} dB, {-case.worse:.1f} dB better than on Gaussian "
            f"values: {find_advantage(case)}; {_no_saving(case) or plain_remedy(case, others)}."
        )
    return (
        f"{name} gives {db_text(case.db)} dB, as good as a Gaussian tensor of this shape gets "
        f"({db_text(case.ordinary_db)} dB), so the error is the scheme's and not this tensor's; "
        f"{_no_saving(case) or general_remedy(case, others)}."
    )


def _no_saving(case: Case) -> str:
    """What there is to say of a scheme that is no smaller than what is stored."""
    bits = case.report.bits_per_parameter
    if bits < case.stored_bits:
        return ""
    return (
        f"at {bits:.2f} bits it saves nothing over the {case.stored_bits:.4g} that are stored, so "
        f"leave it as it is"
    )


def _worse(case: Case) -> str:
    if math.isinf(case.ordinary_db):
        return (
            f"{case.scheme} gives {db_text(case.db)} dB, where Gaussian values of this shape are "
            f"kept exactly"
        )
    return f"{case.scheme} is {case.worse:.1f} dB worse here than on Gaussian values"
