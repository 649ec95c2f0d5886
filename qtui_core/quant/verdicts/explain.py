"""One sentence about what a measured error means, computed from the numbers.

The rules of `RULES` are tried in order; the first that applies gives the sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from qtui_core.answers.tensors import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.formats import get_format
from qtui_core.quant.verdicts.advantages import find_advantage
from qtui_core.quant.verdicts.case import EXACT_DB, NOTICEABLE_DB, Case, nonfinite_sentence
from qtui_core.quant.verdicts.causes import Cause, CauseKind, find_cause
from qtui_core.quant.verdicts.remedies import (
    remedy_of,
    remedy_of_overflow,
    remedy_of_saturation,
)
from qtui_core.quantities import db_text, plural


def explain(
    reports: ErrorReport | Sequence[ErrorReport],
    stats: TensorStatistics | None = None,
    outliers: OutlierReport | None = None,
    *,
    stored_bits: float = math.inf,
) -> str:
    """What the error of a scheme on a tensor means and what to do about it.

    Args:
        reports: the error of the scheme, and after it errors of alternatives on the same tensor.
            The best of these is recommended if it is better. Of schemes that were not measured, the
            sentence gives the expected error on a Gaussian and says so.
        stats, outliers: of the same tensor; without them the sentence says less.
        stored_bits: bits per parameter of the tensor as it is stored. Schemes that take as many are
            not recommended.
    """
    report, *others = [reports] if isinstance(reports, ErrorReport) else list(reports)
    # Schemes with overflowed elements are left out: their errors are over the other elements only.
    usable = tuple(o for o in others if not o.overflowed and o.bits_per_parameter < stored_bits)
    case = Case(report, stats, outliers, usable, stored_bits)
    sentence = next(said for rule in RULES if (said := rule(case)) is not None)
    if report.scheme.rounding == "stochastic" and report.scheme.clips and report.mse:
        return (
            f"{sentence.removesuffix('.')}; stochastic rounding keeps the mean of values between "
            f"the levels only, and {report.scheme.format} clips what lies beyond the last level: "
            f"that is biased inward."
        )
    return sentence


def _empty(case: Case) -> str | None:
    if case.report.count:
        return None
    return "This tensor has no elements, so there is nothing to quantize."


def _not_finite(case: Case) -> str | None:
    return nonfinite_sentence(case.report) or None


def _overflowed(case: Case) -> str | None:
    if not case.report.overflowed:
        return None
    became = "infinite" if get_format(case.scheme.format).has_infinity else "NaN"
    return (
        f"{plural(case.report.overflowed, 'element lies', 'elements lie')} beyond the largest "
        f"number of {case.scheme.format} and became {became}: {remedy_of_overflow(case)}."
    )


def _all_zero(case: Case) -> str | None:
    if case.report.relative_mse is not None:
        return None
    return f"Every element is zero, and {case.scheme} keeps zero exactly."


def _saturated(case: Case) -> str | None:
    if not case.report.saturated:
        return None
    kept = case.report.outlier_columns > 0
    what = "fp16, in which outlier columns are kept," if kept else str(case.scheme)
    return (
        f"{plural(case.report.saturated, 'element lies', 'elements lie')} beyond the largest "
        f"number of {what} and became it: {remedy_of_saturation(case)}."
    )


def _exact(case: Case) -> str | None:
    if case.relative_mse:
        return None
    return f"{case.scheme} keeps every element of this tensor exactly."


def _few_are_measured(case: Case) -> str | None:
    if case.db <= EXACT_DB or not case.few_weigh_all:
        return None
    outliers = case.outliers
    largest = plural(outliers.count if outliers else 1, "element weighs", "elements weigh")
    return (
        f"{case.scheme} gives {db_text(case.db)} dB, which says little: {largest} more than all "
        f"others together; look at the map, where the largest error is "
        f"{case.report.max_abs_error:.3g}."
    )


def _exact_but_for_float32(case: Case) -> str | None:
    if case.db <= EXACT_DB:
        return None
    return (
        f"{case.scheme} keeps every element of this tensor to within the rounding of float32 "
        f"({db_text(case.db)} dB)."
    )


def _worse_than_gaussian(case: Case) -> str | None:
    if case.worse <= NOTICEABLE_DB:
        return None
    worse = f"{case.scheme} is {case.worse:.1f} dB worse here than on Gaussian values"
    if math.isinf(case.ordinary_db):
        worse = (
            f"{case.scheme} gives {db_text(case.db)} dB, where Gaussian values of this shape are "
            f"kept exactly"
        )
    cause = find_cause(case)
    return f"{worse}: {cause.text}; {remedy_of(case, cause)}."


def _better_than_gaussian(case: Case) -> str | None:
    if case.worse >= -NOTICEABLE_DB:
        return None
    cause = find_advantage(case)
    return (
        f"{case.scheme} gives {db_text(case.db)} dB, {-case.worse:.1f} dB better than on Gaussian "
        f"values: {cause.text}; {remedy_of(case, cause)}."
    )


def _as_gaussian(case: Case) -> str:
    cause = Cause(CauseKind.SCHEME, "the error is the scheme's and not this tensor's")
    return (
        f"{case.scheme} gives {db_text(case.db)} dB, as good as a Gaussian tensor of this shape "
        f"gets ({db_text(case.ordinary_db)} dB), so {cause.text}; {remedy_of(case, cause)}."
    )


RULES: tuple[Callable[[Case], str | None], ...] = (
    _empty,
    _not_finite,
    _overflowed,
    _all_zero,
    _saturated,
    _exact,
    _few_are_measured,
    _exact_but_for_float32,
    _worse_than_gaussian,
    _better_than_gaussian,
    _as_gaussian,
)
