"""One sentence about what a measured error means and what would lower it, from the numbers.

`CAUSES`, `ADVANTAGES`, `REMEDIES` and `SENTENCES` are tables whose rows are tried in order; the
first that has something to say is taken. A cause is tested: the error that it can account for is
computed, and it is named only if that is at least half of the error in question. Remedies rest on
measurements of other schemes if there are any, else on what is expected of a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from qtui_core.answers import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.formats import BF16, FP16, float_format, get_format
from qtui_core.quant.case import (
    DB_PER_BIT,
    EXACT_DB,
    HEAVY_TAILS,
    LIGHT_TAILS,
    NOTICEABLE_DB,
    OFF_CENTRE,
    Case,
    best_at_these_bits,
    expected_db,
    finer_that_save,
    groups_of,
    zero_point_scheme,
)
from qtui_core.quant.coders import make_coder
from qtui_core.quant.gaussian import outlier_relative_mse
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.outliers import crowded_columns
from qtui_core.quant.rounding import ROUNDING_NOISE
from qtui_core.quant.storage import KEPT_BITS
from qtui_core.quantities import db_text, percent, plural, power_text
from qtui_core.schemes.granularity import PerModel, PerRow, PerTensor
from qtui_core.schemes.scheme import Family

Fact = TypeVar("Fact")
#: (name, what a row says of a fact, or None if it does not apply), in the order of trial.
Rows = tuple[tuple[str, Callable[[Fact], str | None]], ...]


def first_row(rows: Rows[Fact], fact: Fact) -> tuple[str, str]:
    """The name of the first row that applies, and what it says."""
    return next((name, said) for name, says in rows if (said := says(fact)) is not None)


def said_of(rows: Rows[Fact], fact: Fact) -> str | None:
    """What the first row that applies says; None if none does."""
    return next((said for _, says in rows if (said := says(fact)) is not None), None)


def nonfinite_sentence(report: ErrorReport) -> str | None:
    """What is said of elements that are not finite; None without any."""
    if not report.nonfinite:
        return None
    rest = "every figure is over the finite rest"
    if report.nonfinite == report.count:
        rest = "no element is finite, so there is nothing to measure"
    return (
        f"{plural(report.nonfinite, 'element is', 'elements are')} NaN or infinite: find out where "
        f"{'it comes' if report.nonfinite == 1 else 'they come'} from first; {rest}."
    )


# --- why the error is larger than that of Gaussian values


def _subnormals(case: Case) -> str | None:
    if case.scheme.family is not Family.CAST or not case.report.subnormal:
        return None
    fmt = float_format(case.scheme.format)
    # The error of normal numbers is bounded; the rest is from subnormals.
    nearest = case.scheme.rounding == "nearest"
    most = 2.0 ** -(fmt.mantissa_bits + 1 if nearest else fmt.mantissa_bits)
    step = 2.0 ** (fmt.min_exponent - fmt.mantissa_bits)
    noise = case.report.subnormal * step**2 * ROUNDING_NOISE[case.scheme.rounding]
    noise /= case.report.mse * case.finite
    if max(1 - most**2 / case.relative_mse, min(1.0, noise)) < 0.5:
        return None
    share = case.report.subnormal / case.finite
    return (
        f"{'all' if share == 1 else percent(share)} of its elements lie below the smallest normal "
        f"number of {fmt.name} ({float(fmt.min_normal):.2g}), where its steps no longer shrink "
        f"with the value"
    )


def _model_scale(case: Case) -> str | None:
    expected = case.report.gaussian_relative_mse or 0.0
    noticeable = 10 ** (NOTICEABLE_DB / 10) * case.ordinary
    if not isinstance(case.scheme.granularity, PerModel) or expected <= noticeable:
        return None
    lost = ", and every value became 0" if case.relative_mse == 1.0 else ""
    blamed = expected >= case.relative_mse / 2
    return f"the scale of the model is too wide for this tensor{lost}" if blamed else None


def _smallest_scale(case: Case) -> str | None:
    extent = make_coder(case.scheme).smallest_extent
    if not 0 < case.rms < extent:
        return None
    if outlier_relative_mse(case.scheme, extent, case.rms) < case.relative_mse / 2:
        return None
    lost = ", and every value became 0" if case.relative_mse == 1.0 else ""
    return f"its values are too small for a scale{lost}"


def _outliers(case: Case) -> str | None:
    """Outliers, if the groups that contain them can account for the error."""
    outliers, groups = case.outliers, case.groups
    if outliers is None or not outliers.count or not outliers.top or not groups:
        return None
    rest = max(0.0, 1 - outliers.energy_share)  # of the energy
    background = case.rms * math.sqrt(rest * case.finite / max(1, case.finite - outliers.count))
    excess = case.relative_mse - case.ordinary * rest
    if background > 0:
        if outliers.count > groups or groups == 1:
            extent = abs(outliers.top[0].value)
        else:
            extent = case.rms * math.sqrt(outliers.energy_share * case.finite / outliers.count)
        length = max(1, case.finite // groups)
        stretched = outlier_relative_mse(case.scheme, extent, background, length)
        if case.hit * rest * (stretched - case.ordinary) < excess / 2:
            return None
    scales = "its scale" if outliers.count == 1 or groups == 1 else "the scales"
    verb = "stretches" if outliers.count == 1 else "stretch"
    text = f"{plural(outliers.count, 'element')} beyond {outliers.sigma:g} sigma {verb} {scales}"
    columns, held = crowded_columns(outliers)
    if columns:
        has = "has" if columns == 1 else "have"
        text += (
            f", and {plural(columns, 'column')} of {outliers.column_total:,} {has} "
            f"{percent(held)} of them"
        )
    return text


def _heavy_tails(case: Case) -> str | None:
    if case.kurtosis is None or case.kurtosis <= HEAVY_TAILS:
        return None
    return f"its tails are heavy (kurtosis {case.kurtosis:.1f}, a Gaussian has 3)"


def _off_centre(case: Case) -> str | None:
    if case.offset is None or case.offset < OFF_CENTRE:
        return None
    if case.offset == math.inf:
        return f"its one value lies between two levels of {case.scheme.format}"
    return (
        f"its mean is {case.offset:.3g} standard deviations from zero, so most of its values share "
        f"the levels of {case.scheme.format} on one side of it"
    )


def _no_tails(case: Case) -> str | None:
    if case.kurtosis is None or case.kurtosis >= LIGHT_TAILS:
        return None
    return f"it has almost no tails (kurtosis {case.kurtosis:.1f}, a Gaussian has 3)"


def _light_tails(case: Case) -> str | None:
    codebook = case.scheme.family is Family.CODEBOOK or case.float_elements
    return _no_tails(case) if codebook else None  # whose levels are far apart far from zero


def _between_levels(case: Case) -> str:
    return f"its values lie further from the levels of {case.scheme.format} than Gaussian ones"


CAUSES: Rows[Case] = (
    ("subnormals", _subnormals),
    ("model scale", _model_scale),
    ("smallest scale", _smallest_scale),
    ("outliers", _outliers),
    ("octaves", lambda case: _between_levels(case) if case.wide_float else None),
    ("spread", _heavy_tails),
    ("off centre", _off_centre),
    ("light tails", _light_tails),
    ("levels", _between_levels),
)

# --- why it is smaller


def _kept(case: Case) -> str | None:
    columns, total = case.report.outlier_columns, matrix_shape(case.report.shape)[1]
    verb = "is" if columns == 1 else "are"
    return f"{plural(columns, 'column')} of {total:,} {verb} kept in 16 bits" if columns else None


def _mostly_about_few(case: Case) -> str | None:
    if case.holders is None or case.scheme.family is Family.CAST:
        return None
    them = "it" if case.outliers and case.outliers.count == 1 else "them"
    return f"{case.holders}, so this figure is mostly about {them}"


def _zeros(case: Case) -> str | None:
    stats = case.stats
    share = stats.zeros / stats.finite if stats is not None and stats.finite else 0.0
    if share <= 0.1 or case.wide_float:
        return None
    return f"{share:.0%} of its elements are zero, which costs nothing"


def _far_from_zero(case: Case) -> str | None:
    if case.offset is None or case.offset < OFF_CENTRE or case.wide_float:
        return None
    if case.offset == math.inf:
        return "its one value lies close to a level"
    return (
        f"its mean is {case.offset:.3g} standard deviations from zero, so its values are large "
        f"beside the steps between their levels"
    )


def _near_levels(case: Case) -> str:
    where = f"numbers of {case.scheme.format}" if case.wide_float else "levels of their groups"
    return f"its values lie closer to the {where} than Gaussian ones"


ADVANTAGES: Rows[Case] = (
    ("columns", _kept),
    ("few", _mostly_about_few),
    ("zeros", _zeros),
    ("offset", _far_from_zero),
    ("no tails", lambda case: None if case.wide_float else _no_tails(case)),
    ("luck", _near_levels),
)

# --- what to do


NO_SAVING = "it saves nothing, so leave the tensor as it is stored"


def _no_saving(case: Case) -> str | None:
    bits = case.report.bits_per_parameter
    if bits < case.stored_bits:
        return None
    return (
        f"at {bits:.2f} bits it saves nothing over the {case.stored_bits:.4g} that are stored, so "
        f"leave it as it is"
    )


def _measured(case: Case, others: Sequence[ErrorReport] | None = None) -> str | None:
    """The alternative that gains noticeably, and most for its additional bits, or the smallest one
    without any error. None if there is neither."""
    report, others = case.report, case.others if others is None else others
    assert report.sqnr_db is not None
    useful = [o for o in others if o.sqnr_db and o.sqnr_db - report.sqnr_db > NOTICEABLE_DB]
    exact = [o for o in others if o.relative_mse == 0]
    lossless = min(exact, key=lambda o: o.bits_per_parameter, default=None)
    if lossless is not None:
        useful = [o for o in useful if o.bits_per_parameter < lossless.bits_per_parameter]
        if not useful:
            bits = _at_bits(lossless.bits_per_parameter, report)
            return f"{lossless.scheme} would keep it exactly {bits} (measured)"

    def value(other: ErrorReport) -> float:
        added = max(0.0, other.bits_per_parameter - report.bits_per_parameter)
        return (other.sqnr_db or 0.0) - DB_PER_BIT * added

    better = max(useful, key=value, default=None)
    if better is None:
        return None
    return (
        f"{better.scheme} would bring it from {db_text(report.sqnr_db)} to "
        f"{db_text(better.sqnr_db or 0.0)} dB {_at_bits(better.bits_per_parameter, report)} "
        f"(measured)"
    )


def _at_bits(bits: float, instead: ErrorReport) -> str:
    """The bits of an alternative, compared with those of the scheme."""
    taken = instead.bits_per_parameter
    if f"{bits:.2f}" == f"{taken:.2f}":
        return f"at the same {bits:.2f} bits"
    return f"at {bits:.2f} bits instead of {taken:.2f}"


def _multiply_for_the_scale(case: Case) -> str:
    extent = make_coder(case.scheme).smallest_extent
    return f"multiply it by {power_text(math.ceil(math.log2(extent / case.rms)))} or more first"


def _multiply_for_the_cast(case: Case) -> str:
    fmt = float_format(case.scheme.format)
    # So far above the smallest normal number, a share of about 2^-5 of normal values is below it.
    power = max(1, math.ceil(math.log2(float(fmt.min_normal) / case.rms)) + 5)
    if case.stats is not None and case.stats.absmax * 2.0**power <= float(fmt.max):
        return f"multiply it by {power_text(power)} or more first"
    return "use a scheme with scales"


def _confine(case: Case) -> str:
    """The coarsest of the finer granularities that at least halves the share of groups with an
    outlier."""
    assert case.outliers is not None
    advice = []
    shape = case.report.shape
    for finer in sorted(finer_that_save(case), key=lambda scheme: groups_of(scheme, shape)):
        hit = case.outliers.count / groups_of(finer, shape)
        if hit <= case.hit / 2:
            what = "rows" if isinstance(finer.granularity, PerRow) else "smaller groups"
            share = max(1, math.ceil(100 * hit))
            advice.append(f"{finer} would confine the damage to {share}% or less of its {what}")
            break
    else:
        advice.append(_more_bits(case))
    columns, _ = crowded_columns(case.outliers)
    if columns and case.saves(case.scheme, columns) and case.stored_bits >= KEPT_BITS:
        those = "that column" if columns == 1 else "those columns"
        advice.append(f"keep {those} in 16 bits")
    return ", or ".join(advice)


def _more_bits(case: Case) -> str:
    if case.report.bits_per_parameter + 1 < case.stored_bits:
        what = "mantissa bits" if case.scheme.family is Family.CAST else "bits"
        return f"more {what} would lower the error"
    return f"with another bit it would save nothing over the {case.stored_bits:.4g} that are stored"


def _own_scale(case: Case) -> str | None:
    own = replace(case.scheme, granularity=PerTensor())
    if not case.saves(own):
        return None
    return f"{own}, a scale of its own, would give a Gaussian {db_text(case.ordinary_db)} dB"


def _nearest(case: Case) -> str | None:
    nearest = replace(case.scheme, rounding="nearest", seed=0)
    reached, possible = expected_db(case.scheme, case), expected_db(nearest, case)
    if reached is None or possible is None or possible - reached <= NOTICEABLE_DB:
        return None
    return (
        f"rounding at random costs {possible - reached:.1f} dB and has no bias: {nearest} where "
        f"values are not summed up again and again"
    )


def _zero_point(case: Case) -> str | None:
    scheme = None if case.others else zero_point_scheme(case)
    if scheme is None:
        return None
    return (
        f"{scheme} would lay its levels between the smallest and the largest value of each group "
        f"{_at_bits(case.bits_of(scheme), case.report)}"
    )


def _other_format(case: Case) -> str | None:
    """Few other distributions give integers the error of a Gaussian, and a cast of numbers in its
    range only rounds. For formats with many small levels a Gaussian error says little, so the
    values must look Gaussian too."""
    if case.scheme.family not in (Family.INTEGER, Family.CAST) and case.stats is not None:
        outliers = case.outliers is not None and case.outliers.count
        if not LIGHT_TAILS < (case.kurtosis or 0.0) < HEAVY_TAILS or outliers:
            return None
    better = best_at_these_bits(case, {other.scheme for other in case.others})
    if better is None:
        return None
    bits = _at_bits(case.bits_of(better[0]), case.report)
    return f"{better[0]} would give a Gaussian {db_text(better[1])} dB {bits}"


def _smaller_groups(case: Case) -> str | None:
    # Values that are spread evenly have the same extremes in small groups as in large ones.
    finer = next(iter(finer_that_save(case)), None)
    if finer is None or _no_tails(case) or finer in {other.scheme for other in case.others}:
        return None
    db = expected_db(finer, case) or 0.0
    if db <= case.ordinary_db + NOTICEABLE_DB:
        return None
    return (
        f"more bits would lower the error, or smaller groups: {finer} would give a "
        f"Gaussian {db_text(db)} dB {_at_bits(case.bits_of(finer), case.report)}"
    )


def _finer_scales(case: Case) -> str | None:
    finer = next(iter(finer_that_save(case)), None)
    return None if finer is None else f"{finer} would follow it more closely"


#: The tensor is as good as a Gaussian one, or the scheme suits it in no particular way.
_AS_USUAL = {"octaves", "none"}
_BETWEEN_LEVELS = _AS_USUAL | {"levels", "off centre", "luck"}
_ANY = {name for name, _ in CAUSES} | {"luck", "none"}
#: (the causes that a remedy helps against, what to do or None), in the order of trial.
REMEDIES: tuple[tuple[set[str], Callable[[Case], str | None]], ...] = (
    (_ANY, _no_saving),
    (_ANY, _measured),
    ({"smallest scale"}, _multiply_for_the_scale),
    ({"subnormals"}, _multiply_for_the_cast),
    ({"model scale"}, _own_scale),
    ({"outliers"}, _confine),
    (_BETWEEN_LEVELS, _nearest),
    (_BETWEEN_LEVELS, _zero_point),
    (_AS_USUAL, _other_format),
    (_AS_USUAL, _smaller_groups),
    (_BETWEEN_LEVELS, _more_bits),
    (_ANY, _finer_scales),
    (_ANY, _more_bits),
)


def remedy_of(case: Case, cause: str) -> str:
    """What to do about a cause."""
    return next(
        advice
        for causes, remedy in REMEDIES
        if cause in causes and (advice := remedy(case)) is not None
    )


# --- the sentence


def _saturated(case: Case) -> str | None:
    """Elements beyond the largest number of a cast, or of the fp16 in which outlier columns are
    kept."""
    report = case.report
    if not report.saturated:
        return None
    kept = report.outlier_columns > 0
    what = "fp16, in which outlier columns are kept," if kept else str(case.scheme)
    advice = _measured(case, [o for o in case.others if not o.saturated])
    if advice is None and report.bits_per_parameter >= case.stored_bits:
        advice = NO_SAVING
    if advice is None:
        fmt = FP16 if kept else get_format(report.scheme.format)
        absmax = float(fmt.max) + report.max_abs_error
        power = max(1, math.ceil(math.log2(absmax / float(fmt.max))))
        advice = f"divide the tensor by {power_text(power)} or more first"
        if fmt is not BF16 and absmax <= float(BF16.max) and not kept:
            advice += ", or use bf16"
    lie = plural(report.saturated, "element lies", "elements lie")
    return f"{lie} beyond the largest number of {what} and became it: {advice}."


def _within_float32(case: Case) -> str | None:
    if case.db <= EXACT_DB:
        return None
    if case.relative_mse == 0:
        return f"{case.scheme} keeps every element of this tensor exactly."
    if not case.few_weigh_all:
        return (
            f"{case.scheme} keeps every element of this tensor to within the rounding of float32 "
            f"({db_text(case.db)} dB)."
        )
    count = case.outliers.count if case.outliers else 1
    return (
        f"{case.scheme} gives {db_text(case.db)} dB, which says little: "
        f"{plural(count, 'element weighs', 'elements weigh')} more than all others together; look "
        f"at the map, where the largest error is {case.report.max_abs_error:.3g}."
    )


def _beside_gaussian(case: Case) -> str:
    gives = f"{case.scheme} gives {db_text(case.db)} dB"
    if case.worse > NOTICEABLE_DB:
        cause, why = first_row(CAUSES, case)
        than = f"{case.scheme} is {case.worse:.1f} dB worse here than on Gaussian values"
        if math.isinf(case.ordinary_db):
            than = f"{gives}, where Gaussian values of this shape are kept exactly"
    elif case.worse < -NOTICEABLE_DB:
        cause, (_, why) = "luck", first_row(ADVANTAGES, case)
        than = f"{gives}, {-case.worse:.1f} dB better than on Gaussian values"
    else:
        cause = "none"
        than = f"{gives}, as good as a Gaussian tensor of this shape gets"
        than, why = f"{than} ({db_text(case.ordinary_db)} dB)", ""
    why = f": {why}" if why else ", so the error is the scheme's and not this tensor's"
    return f"{than}{why}; {remedy_of(case, cause)}."


def _nothing_there(case: Case) -> str | None:
    if not case.report.count:
        return "This tensor has no elements, so there is nothing to quantize."
    if case.report.relative_mse is None and not case.report.nonfinite:
        return f"Every element is zero, and {case.scheme} keeps zero exactly."
    return None


#: Why there is no error to speak of.
NOTHING: Rows[Case] = (
    ("nothing there", _nothing_there),
    ("not finite", lambda case: nonfinite_sentence(case.report)),
)
SENTENCES: Rows[Case] = (
    *NOTHING,
    ("beyond the range", _saturated),
    ("exact", _within_float32),
    ("beside a Gaussian", _beside_gaussian),
)


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
    usable = tuple(o for o in others if o.bits_per_parameter < stored_bits)
    case = Case(report, stats, outliers, usable, stored_bits)
    return first_row(SENTENCES, case)[1]
