"""One sentence about what a measured error means and what would lower it, from the numbers.

The rules of `RULES` are tried in order; the first that applies gives the sentence. So with
`REMEDIES`, which lists the remedies with the causes that each helps against: they rest on
measurements of other schemes if there are any, else on what is expected of a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from qtui_core.answers.tensors import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.formats import BF16, FP16, FloatFormat, get_format
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.segments.layout import matrix_shape, run_lengths
from qtui_core.quant.segments.process import make_coder
from qtui_core.quant.storage import KEPT_BITS, bits_per_parameter
from qtui_core.quant.verdicts.causes import (
    EXACT_DB,
    HEAVY_TAILS,
    LIGHT_TAILS,
    NOTICEABLE_DB,
    OFF_CENTRE,
    Case,
    Cause,
    CauseKind,
    Rules,
    find_advantage,
    find_cause,
    first_rule,
    nonfinite_sentence,
)
from qtui_core.quantities import db_text, plural, power_text
from qtui_core.schemes.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
)
from qtui_core.schemes.scheme import (
    FIXED_GRANULARITY,
    SCALE_RULES,
    SCHEME_FORMATS,
    Family,
    Scheme,
    refused_granularity,
)

#: Decibels that one more bit gains in uniform quantization. Smaller gains are not worth a change.
DB_PER_BIT = 20 * math.log10(2)
#: A difference in bits per parameter that counts as none.
SAME_BITS = 0.1
#: For groups smaller than this, scales cost about as much as another bit.
SMALLEST_GROUP = 32
#: The group size at which 32-bit scales cost as much as the 8-bit scales of a format.
EQUAL_GROUPS: dict[Family, Granularity] = {
    Family.MICROSCALING: PerGroup(128),
    Family.TWO_LEVEL: PerGroup(64),
}


def finer_schemes(
    scheme: Scheme, shape: tuple[int, ...], coarsest_first: bool = False
) -> Iterator[Scheme]:
    """The scheme with finer granularities, as far as the scales are worth their bits. Yields
    nothing for a cast, for a format with a fixed granularity, and for scales per column, because
    groups along a row would mix columns."""
    if scheme.granularity is None or scheme.family in FIXED_GRANULARITY:
        return
    if isinstance(scheme.granularity, PerColumn):
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
        # Most libraries make groups of 64; rows are for tensors too narrow for that.
        candidates.sort(key=lambda g: (isinstance(g, PerRow), g == kind(128)))
    for granularity in candidates:
        if isinstance(granularity, PerRow) or granularity.size < size:  # type: ignore[union-attr]
            yield replace(scheme, granularity=granularity)


def finer_that_save(case: Case, coarsest_first: bool = False) -> Iterator[Scheme]:
    """The `finer_schemes` that take fewer bits than the stored values."""
    return filter(case.saves, finer_schemes(case.scheme, case.report.shape, coarsest_first))


def best_at_these_bits(case: Case, seen: set[Scheme]) -> tuple[Scheme, float] | None:
    """(scheme, expected SQNR in decibels) of the best scheme with the same granularity and no more
    bits, if it is expected to be noticeably better on Gaussian values of this size; else None."""
    found = []
    for scheme in same_bits(case.scheme):
        added = bits_per_parameter(scheme, case.report.shape) - case.report.bits_per_parameter
        if scheme in seen or scheme == case.scheme or added > SAME_BITS or not case.saves(scheme):
            continue
        db = expected_db(scheme, case)
        if db is not None and db > case.db + NOTICEABLE_DB:
            found.append((db - DB_PER_BIT * max(0.0, added), scheme, db))
    if not found:
        return None
    _, scheme, db = max(found, key=lambda f: f[0])
    return scheme, db


def same_bits(scheme: Scheme) -> Iterator[Scheme]:
    """Formats and options with the same bits per code and the same groups. For formats with 8-bit
    scales also schemes whose 32-bit scales cost as many bits, because their groups are larger."""
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


def expected_db(scheme: Scheme, case: Case) -> float | None:
    """The expected SQNR, in decibels, on Gaussian values with the tensor's root mean square; None
    if some values are beyond the range of the format, or its scales cannot be so small."""
    if case.rms < make_coder(scheme).smallest_extent:
        return None
    if scheme.family is Family.CAST:
        largest = float(get_format(scheme.format).max)
        known = case.stats.absmax if case.stats is not None else None
        # Nothing was clipped, so the largest number of the scheme bounds the values.
        absmax = float(get_format(case.scheme.format).max) if known is None else known
        if absmax > largest:
            return None
    return decibels(gaussian_relative_mse(scheme, case.report.shape, sigma=case.rms))


def zero_point_scheme(case: Case) -> Scheme | None:
    """Integers with the same bits whose ranges need not include zero, if the values lie far to one
    side of zero. None if they do not, if outliers would widen those ranges, or if zero points would
    cost more than a bit per element."""
    found = _with_zero_point(case)
    if found is None:
        return None
    added = bits_per_parameter(found, case.report.shape) - case.report.bits_per_parameter
    return found if added <= 1 and case.saves(found) else None


def _with_zero_point(case: Case) -> Scheme | None:
    scheme, offset = case.scheme, case.offset
    if offset is None or offset < OFF_CENTRE or scheme.float_zero_point:
        return None
    if isinstance(scheme.granularity, PerModel):
        return None  # the range is that of the model, not of this tensor
    if scheme.family is Family.INTEGER:
        return replace(scheme, scale_rule="absmax", symmetric=False, float_zero_point=True)
    name = f"int{scheme.bits}"
    if scheme.family in (Family.CAST, Family.TERNARY) or name not in SCHEME_FORMATS:
        return None
    kurtosis = None if case.stats is None else case.stats.kurtosis
    if (kurtosis is not None and kurtosis > HEAVY_TAILS) or (case.outliers and case.outliers.count):
        return None
    granularity = EQUAL_GROUPS.get(scheme.family, scheme.granularity)
    return Scheme(name, granularity, symmetric=False, float_zero_point=True)


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
    sentence = first_rule(RULES, case)
    if report.scheme.rounding == "stochastic" and report.scheme.clips and report.mse:
        return (
            f"{sentence.removesuffix('.')}; stochastic rounding keeps the mean of values between "
            f"the levels only, and {report.scheme.format} clips what lies beyond the last level: "
            f"that is biased inward."
        )
    return sentence


def _overflowed(case: Case) -> str:
    became = "infinite" if get_format(case.scheme.format).has_infinity else "NaN"
    return (
        f"{plural(case.report.overflowed, 'element lies', 'elements lie')} beyond the largest "
        f"number of {case.scheme.format} and became {became}: {remedy_of_overflow(case)}."
    )


def _saturated(case: Case) -> str:
    kept = case.report.outlier_columns > 0
    what = "fp16, in which outlier columns are kept," if kept else str(case.scheme)
    return (
        f"{plural(case.report.saturated, 'element lies', 'elements lie')} beyond the largest "
        f"number of {what} and became it: {remedy_of_saturation(case)}."
    )


def _few_are_measured(case: Case) -> str:
    outliers = case.outliers
    largest = plural(outliers.count if outliers else 1, "element weighs", "elements weigh")
    return (
        f"{case.scheme} gives {db_text(case.db)} dB, which says little: {largest} more than all "
        f"others together; look at the map, where the largest error is "
        f"{case.report.max_abs_error:.3g}."
    )


def _worse_than_gaussian(case: Case) -> str:
    worse = f"{case.scheme} is {case.worse:.1f} dB worse here than on Gaussian values"
    if math.isinf(case.ordinary_db):
        worse = (
            f"{case.scheme} gives {db_text(case.db)} dB, where Gaussian values of this shape are "
            f"kept exactly"
        )
    cause = find_cause(case)
    return f"{worse}: {cause.text}; {remedy_of(case, cause)}."


def _better_than_gaussian(case: Case) -> str:
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


RULES: Rules[Case] = (
    (
        lambda case: case.report.count == 0,
        lambda case: "This tensor has no elements, so there is nothing to quantize.",
    ),
    (lambda case: case.report.nonfinite > 0, lambda case: nonfinite_sentence(case.report)),
    (lambda case: case.report.overflowed > 0, _overflowed),
    (
        lambda case: case.report.relative_mse is None,
        lambda case: f"Every element is zero, and {case.scheme} keeps zero exactly.",
    ),
    (lambda case: case.report.saturated > 0, _saturated),
    (
        lambda case: case.relative_mse == 0,
        lambda case: f"{case.scheme} keeps every element of this tensor exactly.",
    ),
    (lambda case: case.db > EXACT_DB and case.few_weigh_all, _few_are_measured),
    (
        lambda case: case.db > EXACT_DB,
        lambda case: (
            f"{case.scheme} keeps every element of this tensor to within the rounding of "
            f"float32 ({db_text(case.db)} dB)."
        ),
    ),
    (lambda case: case.worse > NOTICEABLE_DB, _worse_than_gaussian),
    (lambda case: case.worse < -NOTICEABLE_DB, _better_than_gaussian),
    (lambda case: True, _as_gaussian),
)
