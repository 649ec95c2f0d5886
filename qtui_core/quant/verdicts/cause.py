"""Why an error is larger than that of ordinary values, by the evidence there is.

Every cause is tested before it is named: the error it can account for is computed, and it is
blamed only when that is at least half of what there is to explain.
"""

from __future__ import annotations

import math

from qtui_core.quant.coding.levels import plain_levels, shared_scale
from qtui_core.quant.gaussian import stretched_relative_mse
from qtui_core.quant.gaussian.normal import upper_quantile
from qtui_core.quant.scan.outliers import crowded_columns
from qtui_core.quant.segments.layout import Whole, layout_of
from qtui_core.quant.segments.process import make_coder
from qtui_core.quant.verdicts.blame import Blame, Cause
from qtui_core.quant.verdicts.case import (
    HEAVY_TAILS,
    LIGHT_TAILS,
    NOTICEABLE_DB,
    OFF_CENTRE,
    Case,
    number,
    percent,
)
from qtui_core.quant.verdicts.float_cause import cause_of_cast, cause_of_float, element_is_float
from qtui_core.schemes.granularity import PerColumn, PerModel
from qtui_core.schemes.scheme import Family

#: The smallest scale of a family, 2^-126 of the others.
SMALLEST_SCALES = {
    Family.CODEBOOK: "1e-38",
    Family.MICROSCALING: "2^-127",
    Family.TERNARY: "1e-5",
    Family.TWO_LEVEL: "2^-120 for the tensor",
}


def find_cause(case: Case) -> Cause:
    """Why the scheme does worse on this tensor than on ordinary values."""
    if case.scheme.family is Family.CAST:
        return cause_of_cast(case)
    return (
        _beside_kept_columns(case)
        or _model_scale(case)
        or _smallest_scale(case)
        or _outliers(case)
        or _cut_off(case)
        or cause_of_float(case)
        or _spread(case)
    )


def _beside_kept_columns(case: Case) -> Cause | None:
    """What is known of outliers is known of the kept columns as well, so it explains nothing."""
    columns = case.report.outlier_columns
    if not columns:
        return None
    kept = number(columns, "column", "columns")
    return Cause(
        Blame.SPREAD,
        f"beside the {kept} kept in 16 bits its values still spread further than those",
    )


def _model_scale(case: Case) -> Cause | None:
    expected = case.report.gaussian_relative_mse or 0.0
    noticeable = 10 ** (NOTICEABLE_DB / 10) * case.ordinary
    if not isinstance(case.scheme.granularity, PerModel) or expected <= noticeable:
        return None
    if expected < case.relative_mse / 2:
        return None
    return Cause(
        Blame.MODEL_SCALE,
        f"the scale of the model is too wide for this tensor{_all_lost(case)}",
    )


def _smallest_scale(case: Case) -> Cause | None:
    extent = make_coder(case.scheme).smallest_extent
    if not 0 < case.rms < extent:
        return None
    if stretched_relative_mse(case.scheme, extent, case.rms) < case.relative_mse / 2:
        return None
    smallest = SMALLEST_SCALES.get(case.scheme.family, "2^-126")
    return Cause(
        Blame.SMALLEST_SCALE,
        f"its values are too small for a scale, which is {smallest} or more{_all_lost(case)}",
    )


def _cut_off(case: Case) -> Cause | None:
    """Scales that are powers of two below what the largest values need, where values lie as
    densely up to the largest one as evenly spread ones do."""
    stats, scheme = case.stats, case.scheme
    if scheme.family is not Family.MICROSCALING or stats is None or stats.kurtosis is None:
        return None
    limit = float(plain_levels(scheme)[-1]) * shared_scale(scheme, stats.absmax)
    beyond = stats.absmax - limit
    if beyond <= 0 or stats.kurtosis >= LIGHT_TAILS:
        return None
    lost = beyond**3 / (3 * stats.absmax)  # the mean over evenly spread values
    if lost < (case.relative_mse - case.ordinary) * case.rms**2 / 2:
        return None
    return Cause(
        Blame.CUT_OFF,
        f"under the rule {scheme.scale_rule} magnitudes beyond {limit:.3g} are cut off, and its "
        f"values reach {stats.absmax:.3g}",
    )


def _all_lost(case: Case) -> str:
    return ", and every value became 0" if case.relative_mse == 1.0 else ""


def _outliers(case: Case) -> Cause | None:
    """Outliers, where the groups they are in can hold the error that is to be explained."""
    outliers = case.outliers
    if outliers is None or not outliers.count or not outliers.top:
        return None
    groups = case.groups
    in_columns = isinstance(case.scheme.granularity, PerColumn) and outliers.columns
    hit = min(len(outliers.columns) if in_columns else outliers.count, groups) / groups
    rest = max(0.0, 1 - outliers.energy_share)  # of the energy
    background = case.rms * math.sqrt(rest * case.finite / max(1, case.finite - outliers.count))
    excess = case.relative_mse - case.ordinary * rest
    if background > 0:
        if outliers.count > groups or groups == 1:
            extent = abs(outliers.top[0].value)
        else:
            extent = case.rms * math.sqrt(outliers.energy_share * case.finite / outliers.count)
        length = max(1, case.finite // groups)
        stretched = stretched_relative_mse(case.scheme, extent, background, length)
        if hit * rest * (stretched - case.ordinary) < excess / 2:
            return None
    many = number(outliers.count, "element", "elements")
    scales = "its scale" if outliers.count == 1 or groups == 1 else "the scales"
    verb = "stretches" if outliers.count == 1 else "stretch"
    text = f"{many} beyond {outliers.sigma:g} sigma {verb} {scales}"
    columns, held = crowded_columns(outliers)
    if columns:
        where = number(columns, "column", "columns")
        verb = "has" if columns == 1 else "have"
        text += f", and {where} of {outliers.column_total:,} {verb} {percent(held)} of them"
    return Cause(Blame.OUTLIERS, text, columns, hit)


def _spread(case: Case) -> Cause:
    """What the shape of the distribution says, when nothing single is at fault."""
    kurtosis = case.stats.kurtosis if case.stats is not None else None
    outliers = case.outliers
    if outliers is not None and outliers.energy_share >= 0.5:
        held = number(outliers.count, "element", "elements")
        verb, what = ("holds", "it is") if outliers.count == 1 else ("hold", "they are")
        return Cause(
            Blame.LEVELS,
            f"{held} beyond {outliers.sigma:g} sigma {verb} {percent(outliers.energy_share)} of "
            f"its energy, and {what} kept less well than Gaussian values",
        )
    if kurtosis is not None and kurtosis > HEAVY_TAILS:
        return Cause(
            Blame.SPREAD, f"its tails are heavy (kurtosis {kurtosis:.1f}, a Gaussian has 3)"
        )
    wide = _wide_extent(case)
    if wide is not None:
        return Cause(Blame.SPREAD, wide)
    if case.offset is not None and case.offset >= OFF_CENTRE:
        return Cause(Blame.OFF_CENTRE, _beside_zero(case))
    name = case.scheme.format
    even = case.scheme.family in (Family.INTEGER, Family.TERNARY) or not (
        case.scheme.element is None or element_is_float(case.scheme)
    )
    if kurtosis is not None and kurtosis < LIGHT_TAILS and not even:
        return Cause(
            Blame.LIGHT_TAILS,
            f"it has almost no tails (kurtosis {kurtosis:.1f}, a Gaussian has 3), and far from "
            f"zero the levels of {name} are far apart",
        )
    steps = _steps(case)
    if steps is not None:
        return Cause(Blame.SPREAD, steps)
    return Cause(
        Blame.LEVELS, f"its values lie further from the levels of {name} than Gaussian ones"
    )


def _steps(case: Case) -> str | None:
    """Where values lie evenly between the levels of an integer, as they do of 4 bits and more, the
    error goes with the squares of the steps, and these are larger."""
    even = case.report.even_mse
    if even is None or case.scheme.bits < 4 or not case.ordinary:
        return None
    times = even / case.rms**2 / case.ordinary
    if times <= 1 or 10 * math.log10(times) < case.worse / 2:
        return None
    return (
        f"the squares of its steps, which the largest values of its groups set, are on average "
        f"{times:.2g} times those of Gaussian values with the same energy"
    )


def _beside_zero(case: Case) -> str:
    if case.offset == math.inf:
        return f"its one value lies between two levels of {case.scheme.format}"
    return (
        f"its mean is {case.offset:.3g} standard deviations from zero, so most of its values share "
        f"the levels of {case.scheme.format} on one side of it"
    )


def _wide_extent(case: Case) -> str | None:
    """One scale for the tensor, and a largest magnitude that is large for this size."""
    stats = case.stats
    if stats is None or not isinstance(
        layout_of(case.scheme.granularity, case.report.shape), Whole
    ):
        return None
    usual = upper_quantile(math.log(2) / (2 * case.finite))  # the median of the largest
    ratio = stats.absmax / case.rms
    if 20 * math.log10(ratio / usual) < min(case.worse, 60.0) / 2:
        return None
    if _stretched_by_absmax(case, stats.absmax) < case.relative_mse / 2:
        return None
    return (
        f"its largest magnitude is {ratio:.1f} times its root mean square, where a Gaussian of "
        f"this size reaches {usual:.1f}"
    )


def _stretched_by_absmax(case: Case, absmax: float) -> float:
    """The relative mse of values of this size under one scale that `absmax` has set."""
    return stretched_relative_mse(case.scheme, absmax, case.rms, case.finite)
