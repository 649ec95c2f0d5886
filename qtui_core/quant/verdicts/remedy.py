"""What would lower an error: measured where there are measurements, else computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qtui_core.answers.tensors import ErrorReport
from qtui_core.quant.bit_budget import KEPT_BITS
from qtui_core.quant.segments.layout import run_lengths
from qtui_core.quant.storage import bits_per_parameter
from qtui_core.quant.verdicts.alternatives import (
    best_at_these_bits,
    expected_db,
    finer_that_save,
    zero_point_scheme,
)
from qtui_core.quant.verdicts.blame import Blame, Cause
from qtui_core.quant.verdicts.case import HEAVY_TAILS, LIGHT_TAILS, NOTICEABLE_DB, Case, db_text
from qtui_core.quant.verdicts.measured_remedy import at_bits, measured_remedy, no_better
from qtui_core.quant.verdicts.range_remedy import scale_up
from qtui_core.schemes.granularity import PerRow, PerTensor
from qtui_core.schemes.scheme import Family, Scheme


def remedy_of(case: Case, cause: Cause, others: Sequence[ErrorReport]) -> str:
    """What to do about a cause."""
    measured = measured_remedy(case.report, others)
    if measured is not None:
        return measured
    if cause.blame in (Blame.SUBNORMALS, Blame.SMALLEST_SCALE):
        return scale_up(case, cause)
    if others:
        return no_better(case.report, others)
    match cause.blame:
        case Blame.MODEL_SCALE:
            own = replace(case.scheme, granularity=PerTensor())
            if not case.saves(own):
                return _more_bits(case, "are the way")
            return (
                f"{own}, a scale of its own, would give a Gaussian {db_text(case.ordinary_db)} dB"
            )
        case Blame.OUTLIERS:
            return _confine(case, cause)
        case Blame.CUT_OFF:
            whole = replace(case.scheme, scale_rule="rceil")
            return f"{whole}, whose scales hold the largest value, costs no more bits"
        case Blame.OCTAVES:
            return general_remedy(case, others)
        case Blame.LEVELS | Blame.OFF_CENTRE:
            return plain_remedy(case, others)
        case Blame.LIGHT_TAILS if case.scheme.family is Family.CODEBOOK:
            even = Scheme(f"int{case.scheme.bits}", case.scheme.granularity)
            if case.saves(even):
                return f"{even}, whose levels are evenly spaced, suits it better"
    if case.scheme.family is Family.TERNARY:
        return f"three levels follow no tails, so {_more_bits(case, 'are the way')}"
    finer = next(finer_that_save(case), None)
    return f"{finer} would follow it more closely" if finer else _more_bits(case, "are the way")


def _more_bits(case: Case, verb: str, what: str = "bits") -> str:
    """More bits, where another one would still be fewer than what is stored."""
    if case.report.bits_per_parameter + 1 < case.stored_bits:
        return f"more {what} {verb}"
    return f"with another bit it would save nothing over the {case.stored_bits:.4g} that are stored"


def plain_remedy(case: Case, others: Sequence[ErrorReport]) -> str:
    """What lowers the error of any tensor."""
    measured = measured_remedy(case.report, others)
    if measured is None and (rounding := _rounding_remedy(case)) is not None:
        return rounding
    if measured is None and not others and (moved := _zero_point_remedy(case)) is not None:
        return moved
    what = "mantissa bits" if case.scheme.family is Family.CAST else "bits"
    return measured or _more_bits(case, "would lower the error", what)


def _zero_point_remedy(case: Case) -> str | None:
    """Levels put where values are that lie on one side of zero; None where they do not."""
    scheme = zero_point_scheme(case)
    if scheme is None:
        return None
    bits = bits_per_parameter(scheme, case.report.shape)
    return (
        f"{scheme} would lay its levels between the smallest and the largest value of each group "
        f"{at_bits(bits, case.report.bits_per_parameter)}"
    )


def _rounding_remedy(case: Case) -> str | None:
    """What another rounding than to nearest costs; None where it is to nearest, or costs too
    little for a word."""
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


def general_remedy(case: Case, others: Sequence[ErrorReport]) -> str:
    """What lowers the error of a tensor that behaves as Gaussian values do."""
    measured = measured_remedy(case.report, others)
    if measured is not None:
        return measured
    rounding = _rounding_remedy(case)
    if rounding is not None:
        return rounding
    if not others and (moved := _zero_point_remedy(case)) is not None:
        return moved
    seen = {other.scheme for other in others}
    found = best_at_these_bits(case, seen) if _is_gaussian(case) else None
    if found is not None:
        scheme, db = found
        bits = bits_per_parameter(scheme, case.report.shape)
        return (
            f"{scheme} would give a Gaussian {db_text(db)} dB "
            f"{at_bits(bits, case.report.bits_per_parameter)}"
        )
    finer = next((f for f in finer_that_save(case) if f not in seen), None)
    if finer is not None and not _has_light_tails(case):
        db = expected_db(finer, case) or 0.0
        if db > case.ordinary_db + NOTICEABLE_DB:
            bits = bits_per_parameter(finer, case.report.shape)
            return (
                f"more bits would lower the error, or smaller groups: {finer} would give a "
                f"Gaussian {db_text(db)} dB {at_bits(bits, case.report.bits_per_parameter)}"
            )
    return plain_remedy(case, others)


def _is_gaussian(case: Case) -> bool:
    """Whether other formats can be expected to do to this tensor what they do to a Gaussian.

    Integers fit no other kind so well; casts of numbers in range are about rounding only. That
    a format with many small levels fits says little, so the values must be like a Gaussian's.
    """
    if case.scheme.family in (Family.INTEGER, Family.CAST) or case.stats is None:
        return True
    kurtosis = case.stats.kurtosis or 0.0
    return LIGHT_TAILS < kurtosis < HEAVY_TAILS and not (case.outliers and case.outliers.count)


def _has_light_tails(case: Case) -> bool:
    """Whether values are spread so evenly that the extremes of small groups are those of large
    ones."""
    kurtosis = None if case.stats is None else case.stats.kurtosis
    return kurtosis is not None and kurtosis < LIGHT_TAILS


def _confine(case: Case, cause: Cause) -> str:
    """The coarsest finer scale that at most half as many groups share with an outlier."""
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
        advice.append(_more_bits(case, "are the way"))
    if cause.columns and case.saves(case.scheme, cause.columns) and case.stored_bits >= KEPT_BITS:
        those = "that column" if cause.columns == 1 else "those columns"
        advice.append(f"keep {those} in 16 bits")
    return ", or ".join(advice)
