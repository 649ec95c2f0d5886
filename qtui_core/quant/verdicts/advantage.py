"""Why an error is smaller than that of ordinary values, by the evidence there is."""

from __future__ import annotations

import math

from qtui_core.quant.segments.layout import matrix_shape
from qtui_core.quant.verdicts.case import LIGHT_TAILS, OFF_CENTRE, Case, number, percent
from qtui_core.quant.verdicts.float_cause import is_wide_float
from qtui_core.schemes.scheme import Family


def find_advantage(case: Case) -> str:
    """Why the scheme does better on this tensor than on ordinary values."""
    stats, outliers = case.stats, case.outliers
    if case.report.outlier_columns:
        kept = number(case.report.outlier_columns, "column", "columns")
        verb = "is" if case.report.outlier_columns == 1 else "are"
        return f"{kept} of {matrix_shape(case.report.shape)[1]:,} {verb} kept in 16 bits"
    if case.scheme.family is Family.CAST:
        return f"its values lie closer to the numbers of {case.scheme.format} than Gaussian ones"
    if outliers is not None and outliers.energy_share >= 0.5:
        held = number(outliers.count, "element", "elements")
        verb, them = ("holds", "it") if outliers.count == 1 else ("hold", "them")
        return (
            f"{held} beyond {outliers.sigma:g} sigma {verb} {percent(outliers.energy_share)} of "
            f"its energy, so this figure is mostly about {them}"
        )
    if is_wide_float(case):
        return f"its values lie closer to the numbers of {case.scheme.format} than Gaussian ones"
    if stats is not None and stats.finite and stats.zeros > 0.1 * stats.finite:
        return f"{stats.zeros / stats.finite:.0%} of its elements are zero, which costs nothing"
    if case.offset == math.inf:
        return "its one value lies close to a level"
    if case.offset is not None and case.offset >= OFF_CENTRE:
        return (
            f"its mean is {case.offset:.3g} standard deviations from zero, so its values are large "
            f"beside the steps between their levels"
        )
    if stats is not None and stats.kurtosis is not None and stats.kurtosis < LIGHT_TAILS:
        return f"it has almost no tails (kurtosis {stats.kurtosis:.1f}, a Gaussian has 3)"
    return "its values lie closer to the levels of their groups than Gaussian ones"
