"""What would lower an error, from measurements of other schemes if there are any, else computed.

`REMEDIES` lists the remedies with the causes that each helps against. They are tried in order; the
first that applies is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from qtui_core.answers.tensors import ErrorReport
from qtui_core.formats import BF16, FP16, FloatFormat, get_format
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.segments.layout import run_lengths
from qtui_core.quant.segments.tensor_plan import make_coder
from qtui_core.quant.storage import KEPT_BITS
from qtui_core.quant.verdicts.alternatives import (
    DB_PER_BIT,
    best_at_these_bits,
    expected_db,
    finer_that_save,
    zero_point_scheme,
)
from qtui_core.quant.verdicts.case import HEAVY_TAILS, LIGHT_TAILS, NOTICEABLE_DB, Case
from qtui_core.quant.verdicts.causes import Cause, CauseKind
from qtui_core.quantities import db_text, power_text
from qtui_core.schemes.granularity import PerRow, PerTensor
from qtui_core.schemes.scheme import Family, Scheme

#: The advice for a scheme that takes as many bits as the stored values.
NO_SAVING = "it saves nothing, so leave the tensor as it is stored"
Remedy = Callable[[Case, Cause], str | None]


def remedy_of(case: Case, cause: Cause) -> str:
    """What to do about a cause."""
    return next(
        advice
        for causes, remedy in REMEDIES
        if cause.kind in causes and (advice := remedy(case, cause)) is not None
    )


# --- values beyond the largest number


def remedy_of_saturation(case: Case) -> str:
    """What to do about elements beyond the largest number of a cast, or of the fp16 in which
    outlier columns are kept."""
    report = case.report
    found = measured_remedy(report, [o for o in case.others if not o.saturated])
    if found is not None:
        return found
    if report.bits_per_parameter >= case.stored_bits:
        return NO_SAVING
    fmt = FP16 if report.outlier_columns else get_format(report.scheme.format)
    largest = float(fmt.max)
    absmax = largest + report.max_abs_error
    power = max(1, math.ceil(math.log2(absmax / largest)))
    advice = f"divide the tensor by {power_text(power)} or more first"
    if fmt is not BF16 and absmax <= float(BF16.max) and not report.outlier_columns:
        advice += ", or use bf16"
    return advice


def remedy_of_overflow(case: Case) -> str:
    """What to do about elements that became infinite or NaN."""
    if case.report.bits_per_parameter >= case.stored_bits:
        return NO_SAVING
    fmt = get_format(case.scheme.format)
    largest = float(fmt.max)
    advice = "without nosat they would become that number"
    if case.scheme.family is not Family.CAST:
        return f"{advice}, and a scale of the tensor's own would reach them"
    stats = case.stats
    if stats is not None and stats.absmax > largest:
        power = max(1, math.ceil(math.log2(stats.absmax / largest)))
        advice += f"; divide the tensor by {power_text(power)} or more first"
        if fmt is not BF16 and stats.absmax <= float(BF16.max):
            advice += ", or use bf16"
    return advice


# --- measured on the same tensor


def _no_saving(case: Case, cause: Cause) -> str | None:
    bits = case.report.bits_per_parameter
    if bits < case.stored_bits:
        return None
    return (
        f"at {bits:.2f} bits it saves nothing over the {case.stored_bits:.4g} that are stored, so "
        f"leave it as it is"
    )


def _measured(case: Case, cause: Cause) -> str | None:
    return measured_remedy(case.report, case.others)


def measured_remedy(report: ErrorReport, others: Sequence[ErrorReport]) -> str | None:
    """A sentence about the alternative among `others` that gains noticeably, and most for its
    additional bits, and about the smallest one without any error. None if there is neither."""
    assert report.sqnr_db is not None
    useful = [o for o in others if o.sqnr_db and o.sqnr_db - report.sqnr_db > NOTICEABLE_DB]
    exact = [o for o in others if o.relative_mse == 0]
    lossless = min(exact, key=lambda o: o.bits_per_parameter, default=None)
    if lossless is not None:
        useful = [o for o in useful if o.bits_per_parameter < lossless.bits_per_parameter]
    if not useful:
        if lossless is None:
            return None
        return (
            f"{lossless.scheme} would keep it exactly "
            f"{_at_bits(lossless.bits_per_parameter, report)} (measured)"
        )

    def value(other: ErrorReport) -> float:
        added = max(0.0, other.bits_per_parameter - report.bits_per_parameter)
        return (other.sqnr_db or 0.0) - DB_PER_BIT * added

    better = max(useful, key=value)
    text = (
        f"{better.scheme} would bring it from {db_text(report.sqnr_db)} to "
        f"{db_text(better.sqnr_db or 0.0)} dB {_at_bits(better.bits_per_parameter, report)} "
        f"(measured)"
    )
    if lossless is not None:
        text += (
            f", and {lossless.scheme} would keep it exactly at "
            f"{lossless.bits_per_parameter:.2f} bits"
        )
    return text


def _none_is_better(case: Case, cause: Cause) -> str | None:
    """How much the best measured scheme gains, if none gains enough to be recommended."""
    report = case.report
    if not case.others:
        return None
    assert report.sqnr_db is not None
    best = max(case.others, key=lambda o: o.sqnr_db or -math.inf)
    gain = (best.sqnr_db or -math.inf) - report.sqnr_db
    if gain <= 0:
        return "none of the other schemes measured does better"
    much = "less than 0.1" if gain < 0.1 else f"only {gain:.1f}"
    return (
        f"the best of the other schemes measured, {best.scheme}, gains {much} dB "
        f"{_at_bits(best.bits_per_parameter, report)}"
    )


def _at_bits(bits: float, instead: ErrorReport) -> str:
    """The bits of an alternative, compared with those of the scheme."""
    taken = instead.bits_per_parameter
    if f"{bits:.2f}" == f"{taken:.2f}":
        return f"at the same {bits:.2f} bits"
    return f"at {bits:.2f} bits instead of {taken:.2f}"


# --- values that a scale or a cast cannot reach


def _multiply_for_the_scale(case: Case, cause: Cause) -> str:
    """Multiply by a power of two, which is exact."""
    extent = make_coder(case.scheme).smallest_extent
    return f"multiply it by {power_text(math.ceil(math.log2(extent / case.rms)))} or more first"


def _multiply_for_the_cast(case: Case, cause: Cause) -> str:
    """Multiply by a power of two, or use another format that can represent values of this size."""
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


def _own_scale(case: Case, cause: Cause) -> str:
    own = replace(case.scheme, granularity=PerTensor())
    if not case.saves(own):
        return _more_bits(case, cause)
    return f"{own}, a scale of its own, would give a Gaussian {db_text(case.ordinary_db)} dB"


def _confine(case: Case, cause: Cause) -> str:
    """The coarsest of the finer granularities that at least halves the share of groups with an
    outlier."""
    assert case.outliers is not None
    advice = []
    for finer in finer_that_save(case, coarsest_first=True):
        groups = sum(run_lengths(finer.granularity, case.report.shape).values())
        hit = case.outliers.count / groups
        if hit <= cause.hit / 2:
            what = "rows" if isinstance(finer.granularity, PerRow) else "smaller groups"
            share = max(1, math.ceil(100 * hit))
            advice.append(f"{finer} would confine the damage to {share}% or less of its {what}")
            break
    else:
        advice.append(_more_bits(case, cause))
    if cause.columns and case.saves(case.scheme, cause.columns) and case.stored_bits >= KEPT_BITS:
        those = "that column" if cause.columns == 1 else "those columns"
        advice.append(f"keep {those} in 16 bits")
    return ", or ".join(advice)


def _whole_scales(case: Case, cause: Cause) -> str:
    whole = replace(case.scheme, scale_rule="rceil")
    return f"{whole}, whose scales hold the largest value, costs no more bits"


# --- any tensor


def _rounding(case: Case, cause: Cause) -> str | None:
    """What a rounding other than to nearest costs; None for rounding to nearest, or if it costs too
    little to mention."""
    if case.scheme.rounding == "nearest":
        return None
    nearest = replace(case.scheme, rounding="nearest", seed=0)
    reached, possible = expected_db(case.scheme, case), expected_db(nearest, case)
    if reached is None or possible is None or possible - reached <= NOTICEABLE_DB:
        return None
    if case.scheme.rounding == "truncate":
        return (
            f"truncation costs {possible - reached:.1f} dB, so round to nearest instead: "
            f"{nearest} would give a Gaussian {db_text(possible)} dB"
        )
    return (
        f"rounding at random costs {possible - reached:.1f} dB and has no bias, which is worth it "
        f"where rounded values are summed up again and again; else use {nearest}"
    )


def _zero_point(case: Case, cause: Cause) -> str | None:
    """A zero point for values that lie on one side of zero; None if they do not."""
    scheme = None if case.others else zero_point_scheme(case)
    if scheme is None:
        return None
    return (
        f"{scheme} would lay its levels between the smallest and the largest value of each group "
        f"{_at_bits(case.bits_of(scheme), case.report)}"
    )


def _other_format(case: Case, cause: Cause) -> str | None:
    found = best_at_these_bits(case, _seen(case)) if _is_gaussian(case) else None
    if found is None:
        return None
    scheme, db = found
    return (
        f"{scheme} would give a Gaussian {db_text(db)} dB "
        f"{_at_bits(case.bits_of(scheme), case.report)}"
    )


def _smaller_groups(case: Case, cause: Cause) -> str | None:
    """Smaller groups; None if there are none, or if values are spread so evenly that small groups
    have the same extremes as large ones."""
    finer = next((f for f in finer_that_save(case) if f not in _seen(case)), None)
    if finer is None or (case.kurtosis is not None and case.kurtosis < LIGHT_TAILS):
        return None
    db = expected_db(finer, case) or 0.0
    if db <= case.ordinary_db + NOTICEABLE_DB:
        return None
    return (
        f"more bits would lower the error, or smaller groups: {finer} would give a "
        f"Gaussian {db_text(db)} dB {_at_bits(case.bits_of(finer), case.report)}"
    )


def _seen(case: Case) -> set[Scheme]:
    return {other.scheme for other in case.others}


def _is_gaussian(case: Case) -> bool:
    """Whether the errors of other formats on a Gaussian can be expected on this tensor too.

    Few other distributions give integers the error of a Gaussian, and a cast of numbers in its
    range only rounds. For formats with many small levels, a Gaussian error says little, so the
    values must look Gaussian too.
    """
    if case.scheme.family in (Family.INTEGER, Family.CAST) or case.stats is None:
        return True
    kurtosis = case.stats.kurtosis or 0.0
    return LIGHT_TAILS < kurtosis < HEAVY_TAILS and not (case.outliers and case.outliers.count)


def _bits_lower_it(case: Case, cause: Cause) -> str:
    what = "mantissa bits" if case.scheme.family is Family.CAST else "bits"
    return _if_still_fewer(case, f"more {what} would lower the error")


# --- values that spread further, or less far, than the levels


def _even_levels(case: Case, cause: Cause) -> str | None:
    if case.scheme.family is not Family.CODEBOOK:
        return None
    even = Scheme(f"int{case.scheme.bits}", case.scheme.granularity)
    if not case.saves(even):
        return None
    return f"{even}, whose levels are evenly spaced, suits it better"


def _three_levels(case: Case, cause: Cause) -> str | None:
    if case.scheme.family is not Family.TERNARY:
        return None
    return f"three levels follow no tails, so {_more_bits(case, cause)}"


def _finer_scales(case: Case, cause: Cause) -> str | None:
    finer = next(finer_that_save(case), None)
    return None if finer is None else f"{finer} would follow it more closely"


def _more_bits(case: Case, cause: Cause) -> str:
    return _if_still_fewer(case, "more bits are the way")


def _if_still_fewer(case: Case, advice: str) -> str:
    """The advice to use more bits, unless one more bit would take as many as the stored values."""
    if case.report.bits_per_parameter + 1 < case.stored_bits:
        return advice
    return f"with another bit it would save nothing over the {case.stored_bits:.4g} that are stored"


#: The causes are those of `CauseKind`.
_ALL = frozenset(CauseKind)
#: The tensor is as good as a Gaussian one, or the scheme suits it in no particular way.
_AS_USUAL = frozenset({CauseKind.OCTAVES, CauseKind.SCHEME})
_BETWEEN_LEVELS = _AS_USUAL | {CauseKind.LEVELS, CauseKind.OFF_CENTRE, CauseKind.LUCK}
REMEDIES: tuple[tuple[frozenset[CauseKind], Remedy], ...] = (
    (_ALL, _no_saving),
    (_ALL, _measured),
    (frozenset({CauseKind.SMALLEST_SCALE}), _multiply_for_the_scale),
    (frozenset({CauseKind.SUBNORMALS}), _multiply_for_the_cast),
    (_ALL - {CauseKind.LUCK, CauseKind.SCHEME}, _none_is_better),
    (frozenset({CauseKind.MODEL_SCALE}), _own_scale),
    (frozenset({CauseKind.OUTLIERS}), _confine),
    (frozenset({CauseKind.CUT_OFF}), _whole_scales),
    (_BETWEEN_LEVELS, _rounding),
    (_BETWEEN_LEVELS, _zero_point),
    (_AS_USUAL, _other_format),
    (_AS_USUAL, _smaller_groups),
    (_BETWEEN_LEVELS, _bits_lower_it),
    (frozenset({CauseKind.LIGHT_TAILS}), _even_levels),
    (_ALL, _three_levels),
    (_ALL, _finer_scales),
    (_ALL, _more_bits),
)
