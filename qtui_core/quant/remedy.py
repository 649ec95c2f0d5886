"""What would lower an error: measured where there are measurements, else computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from qtui_core.formats import BF16, FP16, FloatFormat, get_format
from qtui_core.quant.case import NOTICEABLE_DB, Case, db_text, power_text
from qtui_core.quant.cause import HEAVY_TAILS, LIGHT_TAILS, Blame, Cause
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.granularity import Granularity, PerBlock, PerGroup, PerModel, PerRow, PerTensor
from qtui_core.quant.layout import matrix_shape, run_lengths
from qtui_core.quant.measure import ErrorReport, decibels
from qtui_core.quant.process import make_coder
from qtui_core.quant.scheme import (
    FIXED_GRANULARITY,
    SCALE_RULES,
    SCHEME_FORMATS,
    Family,
    Scheme,
    refused_granularity,
)
from qtui_core.quant.statistics import TensorStatistics
from qtui_core.quant.storage import bits_per_parameter

#: What a bit is worth in uniform quantization: gains beyond that are the finding.
DB_PER_BIT = 20 * math.log10(2)
#: Bits a parameter that count as about the same.
SAME_BITS = 0.1
#: Below groups of this size scales cost about as much as another bit.
SMALLEST_GROUP = 32
#: Groups with scales in 32 bits that cost what the 8-bit scales of a format do.
EQUAL_GROUPS: dict[Family, Granularity] = {
    Family.MICROSCALING: PerGroup(128),
    Family.TWO_LEVEL: PerGroup(64),
}


def measured_remedy(report: ErrorReport, others: Sequence[ErrorReport]) -> str | None:
    """The alternative among `others` that gains noticeably, and most for the bits it adds; and
    the smallest that loses nothing. None where there are none."""
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
            f"{_at_bits(lossless.bits_per_parameter, report.bits_per_parameter)} (measured)"
        )

    def value(other: ErrorReport) -> float:
        added = max(0.0, other.bits_per_parameter - report.bits_per_parameter)
        return (other.sqnr_db or 0.0) - DB_PER_BIT * added

    better = max(useful, key=value)
    text = (
        f"{better.scheme} would bring it from {db_text(report.sqnr_db)} to "
        f"{db_text(better.sqnr_db or 0.0)} dB "
        f"{_at_bits(better.bits_per_parameter, report.bits_per_parameter)} (measured)"
    )
    if lossless is not None:
        text += (
            f", and {lossless.scheme} would keep it exactly at "
            f"{lossless.bits_per_parameter:.2f} bits"
        )
    return text


def remedy_of(case: Case, cause: Cause, others: Sequence[ErrorReport]) -> str:
    """What to do about a cause."""
    measured = measured_remedy(case.report, others)
    if measured is not None:
        return measured
    if cause.blame in (Blame.SUBNORMALS, Blame.SMALLEST_SCALE):
        return _scale_up(case, cause)
    if others:
        return _no_better(case.report, others)
    match cause.blame:
        case Blame.MODEL_SCALE:
            own = replace(case.scheme, granularity=PerTensor())
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
        case Blame.LEVELS:
            return plain_remedy(case, others)
        case Blame.LIGHT_TAILS if case.scheme.family is Family.CODEBOOK:
            even = Scheme(f"int{case.scheme.bits}", case.scheme.granularity)
            return f"{even}, whose levels are evenly spaced, suits it better"
    if case.scheme.family is Family.TERNARY:
        return "three levels follow no tails, so more bits are the way"
    finer = next(_finer(case.scheme, case.report.shape), None)
    return f"{finer} would follow it more closely" if finer else "more bits are the way"


def plain_remedy(case: Case, others: Sequence[ErrorReport]) -> str:
    """What lowers the error of any tensor."""
    measured = measured_remedy(case.report, others)
    if measured is None and (rounding := _rounding_remedy(case)) is not None:
        return rounding
    what = "mantissa bits" if case.scheme.family is Family.CAST else "bits"
    return measured or f"more {what} would lower it"


def _rounding_remedy(case: Case) -> str | None:
    """What another rounding than to nearest costs; None where it is to nearest, or costs too
    little for a word."""
    if case.scheme.rounding == "nearest":
        return None
    nearest = replace(case.scheme, rounding="nearest", seed=0)
    reached, possible = _expected_db(case.scheme, case), _expected_db(nearest, case)
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
    seen = {other.scheme for other in others}
    found = _best_at_these_bits(case, seen) if _is_gaussian(case) else None
    if found is not None:
        scheme, db = found
        bits = bits_per_parameter(scheme, case.report.shape)
        return (
            f"{scheme} would give a Gaussian {db_text(db)} dB "
            f"{_at_bits(bits, case.report.bits_per_parameter)}"
        )
    finer = next((f for f in _finer(case.scheme, case.report.shape) if f not in seen), None)
    if finer is not None:
        db = _expected_db(finer, case) or 0.0
        if db > case.ordinary_db + NOTICEABLE_DB:
            return (
                f"more bits would lower it, or smaller groups: {finer} would give a Gaussian "
                f"{db_text(db)} dB"
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


def remedy_of_saturation(report: ErrorReport, others: Sequence[ErrorReport]) -> str:
    """What to do about elements beyond the largest number of a cast, or of the fp16 in which
    outlier columns are kept."""
    measured = measured_remedy(report, [o for o in others if not o.saturated])
    if measured is not None:
        return measured
    fmt = FP16 if report.outlier_columns else get_format(report.scheme.format)
    largest = float(fmt.max)
    absmax = largest + report.max_abs_error
    power = max(1, math.ceil(math.log2(absmax / largest)))
    advice = f"divide the tensor by {power_text(power)} or more first"
    if fmt is not BF16 and absmax <= float(BF16.max) and not report.outlier_columns:
        advice += ", or use bf16"
    return advice


def remedy_of_overflow(report: ErrorReport, stats: TensorStatistics | None) -> str:
    """What to do about elements that became infinite or NaN."""
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


def _at_bits(bits: float, instead: float) -> str:
    if f"{bits:.2f}" == f"{instead:.2f}":
        return f"at the same {bits:.2f} bits"
    return f"at {bits:.2f} bits instead of {instead:.2f}"


def _no_better(report: ErrorReport, others: Sequence[ErrorReport]) -> str:
    assert report.sqnr_db is not None
    best = max(others, key=lambda o: o.sqnr_db or -math.inf)
    gain = (best.sqnr_db or -math.inf) - report.sqnr_db
    if gain <= 0:
        return "none of the other schemes measured does better"
    much = "less than 0.1" if gain < 0.1 else f"only {gain:.1f}"
    return f"the best of the other schemes measured, {best.scheme}, gains {much} dB"


def _scale_up(case: Case, cause: Cause) -> str:
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
    found = _best_at_these_bits(case, set())
    if found is not None:
        advice.append(f"use {found[0]}, which would give a Gaussian {db_text(found[1])} dB")
    return ", or ".join(advice) or "use a scheme with scales"


def _is_ordinary(case: Case, sigma: float) -> bool:
    found = decibels(gaussian_relative_mse(case.scheme, case.report.shape, sigma=sigma))
    return found is not None and found > case.ordinary_db - NOTICEABLE_DB / 2


def _confine(case: Case, cause: Cause) -> str:
    """The coarsest finer scale that at most half as many groups share with an outlier."""
    assert case.outliers is not None
    advice = []
    for finer in _finer(case.scheme, case.report.shape, coarsest_first=True):
        groups = sum(run_lengths(finer.granularity, case.report.shape).values())
        hit = case.outliers.count / groups
        if hit <= cause.hit / 2:
            what = "rows" if isinstance(finer.granularity, PerRow) else "smaller groups"
            share = max(1, math.ceil(100 * hit))
            advice.append(f"{finer} would confine the damage to {share}% or less of its {what}")
            break
    else:
        advice.append("more bits are the way")
    if cause.columns:
        those = "that column" if cause.columns == 1 else "those columns"
        advice.append(f"keep {those} in 16 bits")
    return ", or ".join(advice)


def _finer(
    scheme: Scheme, shape: tuple[int, ...], coarsest_first: bool = False
) -> Iterator[Scheme]:
    """The scheme with more scales, as far as those are worth their bits; none for a cast and for
    a format that is defined with one granularity."""
    if scheme.granularity is None or scheme.family in FIXED_GRANULARITY:
        return
    rows, columns = matrix_shape(shape)
    groups = sum(run_lengths(scheme.granularity, shape).values())
    size = rows * columns // max(1, groups)
    kind = PerBlock if isinstance(scheme.granularity, PerBlock) else PerGroup
    candidates: list[Granularity] = []
    if isinstance(scheme.granularity, PerTensor | PerModel) and rows > 1:
        candidates.append(PerRow())
    candidates += [kind(n) for n in (128, 64, SMALLEST_GROUP) if n < columns or kind is PerBlock]
    if not coarsest_first:
        # Groups of 64 are what most libraries make; rows are for tensors too narrow for that.
        candidates.sort(key=lambda g: (isinstance(g, PerRow), g == kind(128)))
    for granularity in candidates:
        if isinstance(granularity, PerRow) or granularity.size < size:  # type: ignore[union-attr]
            yield replace(scheme, granularity=granularity)


def _best_at_these_bits(case: Case, seen: set[Scheme]) -> tuple[Scheme, float] | None:
    """The scheme with the same sharing of scales, and no more bits, that is expected to be
    noticeably better on Gaussian values of this size, and how good."""
    found = []
    for scheme in _same_bits(case.scheme):
        added = bits_per_parameter(scheme, case.report.shape) - case.report.bits_per_parameter
        if scheme in seen or scheme == case.scheme or added > SAME_BITS:
            continue
        db = _expected_db(scheme, case)
        if db is not None and db > case.db + NOTICEABLE_DB:
            found.append((db - DB_PER_BIT * max(0.0, added), scheme, db))
    if not found:
        return None
    _, scheme, db = max(found, key=lambda f: f[0])
    return scheme, db


def _same_bits(scheme: Scheme) -> Iterator[Scheme]:
    """Formats and options with as many bits a code and the same groups; beside the formats with
    scales in 8 bits, groups whose scales in 32 bits cost as much."""
    granularity = EQUAL_GROUPS.get(scheme.family, scheme.granularity)
    if isinstance(granularity, PerModel):
        granularity = PerTensor()
    for name, fmt in SCHEME_FORMATS.items():
        if fmt.bits != scheme.bits or (fmt.family is Family.CAST) != (scheme.family is Family.CAST):
            continue
        shared: Granularity | None = granularity
        if fmt.family in FIXED_GRANULARITY:
            shared = fmt.default
        elif fmt.family is Family.CODEBOOK and isinstance(granularity, PerGroup):
            shared = PerBlock(granularity.size)
        if refused_granularity(name, shared) is not None:
            continue
        if fmt.family is Family.INTEGER:
            yield Scheme(name, shared, symmetric=False)
        for rule in SCALE_RULES.get(fmt.family, ("",)):
            yield Scheme(name, shared, scale_rule=rule)


def _expected_db(scheme: Scheme, case: Case) -> float | None:
    """On Gaussian values of the tensor's size; None where the format cannot hold them all, or
    its scales not be so small."""
    if case.rms < make_coder(scheme).smallest_extent:
        return None
    if scheme.family is Family.CAST:
        largest = float(get_format(scheme.format).max)
        known = case.stats.absmax if case.stats is not None else None
        # Nothing was cut, so what the scheme itself can hold is a bound.
        absmax = float(get_format(case.scheme.format).max) if known is None else known
        if absmax > largest:
            return None
    return decibels(gaussian_relative_mse(scheme, case.report.shape, sigma=case.rms))
