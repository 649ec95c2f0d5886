"""Schemes that may do better than a given one, and their expected errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from qtui_core.formats import get_format
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.segments.layout import matrix_shape, run_lengths
from qtui_core.quant.segments.tensor_plan import make_coder
from qtui_core.quant.storage import bits_per_parameter
from qtui_core.quant.verdicts.case import HEAVY_TAILS, NOTICEABLE_DB, OFF_CENTRE, Case
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
