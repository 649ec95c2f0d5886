"""Why an error is smaller than on Gaussian values. The reasons of `BETTER` are tested in order; the
first that applies is taken."""

from __future__ import annotations

import math
from collections.abc import Callable

from qtui_core.quant.segments.layout import matrix_shape
from qtui_core.quant.verdicts.case import LIGHT_TAILS, OFF_CENTRE, Case
from qtui_core.quant.verdicts.causes import Cause, CauseKind, is_wide_float
from qtui_core.quantities import percent, plural
from qtui_core.schemes.scheme import Family


def find_advantage(case: Case) -> Cause:
    """Why the scheme does better on this tensor than on Gaussian values."""
    text = next(text for test in BETTER if (text := test(case)) is not None)
    return Cause(CauseKind.LUCK, text)


def _columns_are_kept(case: Case) -> str | None:
    columns = case.report.outlier_columns
    if not columns:
        return None
    kept, verb = plural(columns, "column"), "is" if columns == 1 else "are"
    return f"{kept} of {matrix_shape(case.report.shape)[1]:,} {verb} kept in 16 bits"


def _near_numbers_of_a_cast(case: Case) -> str | None:
    return _near_numbers(case) if case.scheme.family is Family.CAST else None


def _few_are_measured(case: Case) -> str | None:
    outliers = case.outliers
    if outliers is None or outliers.energy_share < 0.5:
        return None
    held = plural(outliers.count, "element")
    verb, them = ("holds", "it") if outliers.count == 1 else ("hold", "them")
    return (
        f"{held} beyond {outliers.sigma:g} sigma {verb} {percent(outliers.energy_share)} of "
        f"its energy, so this figure is mostly about {them}"
    )


def _near_numbers_of_a_float(case: Case) -> str | None:
    return _near_numbers(case) if is_wide_float(case) else None


def _near_numbers(case: Case) -> str:
    return f"its values lie closer to the numbers of {case.scheme.format} than Gaussian ones"


def _zeros(case: Case) -> str | None:
    stats = case.stats
    if stats is None or not stats.finite or stats.zeros <= 0.1 * stats.finite:
        return None
    return f"{stats.zeros / stats.finite:.0%} of its elements are zero, which costs nothing"


def _far_from_zero(case: Case) -> str | None:
    if case.offset is None or case.offset < OFF_CENTRE:
        return None
    if case.offset == math.inf:
        return "its one value lies close to a level"
    return (
        f"its mean is {case.offset:.3g} standard deviations from zero, so its values are large "
        f"beside the steps between their levels"
    )


def _no_tails(case: Case) -> str | None:
    if case.kurtosis is None or case.kurtosis >= LIGHT_TAILS:
        return None
    return f"it has almost no tails (kurtosis {case.kurtosis:.1f}, a Gaussian has 3)"


def _near_levels(case: Case) -> str:
    return "its values lie closer to the levels of their groups than Gaussian ones"


BETTER: tuple[Callable[[Case], str | None], ...] = (
    _columns_are_kept,
    _near_numbers_of_a_cast,
    _few_are_measured,
    _near_numbers_of_a_float,
    _zeros,
    _far_from_zero,
    _no_tails,
    _near_levels,
)
