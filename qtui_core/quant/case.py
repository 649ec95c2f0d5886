"""What is known of a tensor under a scheme, and which other schemes it could have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from qtui_core.answers import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.coders import make_coder
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.layout import matrix_shape, run_lengths
from qtui_core.quant.measure import decibels
from qtui_core.quant.storage import bits_per_parameter
from qtui_core.quantities import percent, plural
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

#: Decibels: smaller differences are not mentioned.
NOTICEABLE_DB = 0.5
#: Decibels: beyond this SQNR only the rounding of float32 itself remains.
EXACT_DB = 120.0
#: Decibels that one more bit gains in uniform quantization. Smaller gains are not worth a change.
DB_PER_BIT = 20 * math.log10(2)
#: Kurtosis above which heavy tails, and below which light tails, explain a difference.
HEAVY_TAILS, LIGHT_TAILS = 4.0, 2.5
#: If the mean is this many standard deviations from zero, few values use the levels on the other
#: side.
OFF_CENTRE = 1.0
#: A difference in bits per parameter that counts as none.
SAME_BITS = 0.1
#: For groups smaller than this, scales cost about as much as another bit.
SMALLEST_GROUP = 32
#: The group size at which 32-bit scales cost as much as the 8-bit scales of a format.
EQUAL_GROUPS: dict[Family, Granularity] = {
    Family.MICROSCALING: PerGroup(128),
    Family.TWO_LEVEL: PerGroup(64),
}


@dataclass(frozen=True)
class Case:
    """What is known of a tensor under a scheme.

    Attributes:
        report: the measured error of the scheme on the tensor.
        stats, outliers: of the same tensor, if known.
        others: errors of other schemes on the same tensor, which a remedy may recommend.
        stored_bits: bits per parameter of the tensor as it is stored.
    """

    report: ErrorReport
    stats: TensorStatistics | None = None
    outliers: OutlierReport | None = None
    others: tuple[ErrorReport, ...] = ()
    stored_bits: float = math.inf

    @property
    def scheme(self) -> Scheme:
        return self.report.scheme

    @property
    def relative_mse(self) -> float:
        """Squared error over squared elements, 0.0 for a tensor without nonzero elements."""
        return self.report.relative_mse or 0.0

    @property
    def db(self) -> float:
        """The measured SQNR in decibels; infinite if there is no error."""
        return -10 * math.log10(self.relative_mse) if self.relative_mse else math.inf

    @cached_property
    def ordinary(self) -> float:
        """The relative mse of Gaussian values of this shape under ordinary conditions: a cast of
        values near 1, a scale of the tensor instead of the model's, and no columns kept in 16
        bits."""
        scheme = self.scheme
        expected = self.report.gaussian_relative_mse
        if scheme.family is Family.CAST:
            expected = gaussian_relative_mse(scheme, self.report.shape)
        elif isinstance(scheme.granularity, PerModel):
            own = replace(scheme, granularity=PerTensor())
            expected = gaussian_relative_mse(own, self.report.shape)
        elif scheme.outlier_threshold is not None:
            undivided = replace(scheme, outlier_threshold=None)
            expected = gaussian_relative_mse(undivided, self.report.shape)
        return expected or 0.0

    @property
    def ordinary_db(self) -> float:
        """`ordinary` as an SQNR in decibels; infinite if Gaussian values are kept exactly, as in
        groups of one element."""
        db = decibels(self.ordinary)
        return math.inf if db is None or db > EXACT_DB else db

    @property
    def worse(self) -> float:
        """Decibels by which the SQNR is below that of Gaussian values; negative if it is better."""
        return self.ordinary_db - self.db

    @property
    def rms(self) -> float:
        """Root mean square of the tensor, from its error report."""
        return math.sqrt(self.report.mse / self.relative_mse)

    @property
    def kurtosis(self) -> float | None:
        return None if self.stats is None else self.stats.kurtosis

    @property
    def few_weigh_all(self) -> bool:
        """Whether a few outliers hold almost the whole sum of squares. If k equal elements held all
        of it, the kurtosis of n elements would be n/k."""
        if self.outliers is None or self.stats is None or self.stats.kurtosis is None:
            return False
        return 2 * self.stats.kurtosis * self.outliers.count > self.stats.finite

    @property
    def holders(self) -> str | None:
        """In words, what share of the sum of squares the outliers hold; None for less than half."""
        outliers = self.outliers
        if outliers is None or outliers.energy_share < 0.5:
            return None
        held, verb = plural(outliers.count, "element"), "holds" if outliers.count == 1 else "hold"
        share = percent(outliers.energy_share)
        return f"{held} beyond {outliers.sigma:g} sigma {verb} {share} of its energy"

    @property
    def offset(self) -> float | None:
        """The distance of the mean from zero in standard deviations, infinite for a constant; None
        without statistics."""
        stats = self.stats
        if stats is None or stats.mean is None or stats.std is None:
            return None
        return abs(stats.mean) / stats.std if stats.std else math.inf

    @property
    def finite(self) -> int:
        """How many elements are finite."""
        return self.report.count - self.report.nonfinite

    @property
    def groups(self) -> int:
        """Groups that share a scale; 0 for a cast."""
        return groups_of(self.scheme, self.report.shape)

    @property
    def float_elements(self) -> bool:
        element = self.scheme.element
        return element is not None and isinstance(get_format(element), FloatFormat)

    @property
    def wide_float(self) -> bool:
        """Whether the format has so many octaves that the scale matters little."""
        return self.float_elements and self.scheme.bits >= 8

    @property
    def hit(self) -> float:
        """The share of groups with an outlier."""
        assert self.outliers is not None
        in_columns = isinstance(self.scheme.granularity, PerColumn) and self.outliers.columns
        count = len(self.outliers.columns) if in_columns else self.outliers.count
        return min(count, self.groups) / self.groups

    def bits_of(self, scheme: Scheme) -> float:
        """Bits per parameter of the tensor under another scheme without kept columns."""
        return bits_per_parameter(scheme, self.report.shape)

    def saves(self, scheme: Scheme, columns: int = 0) -> bool:
        """Whether a scheme, with `columns` columns kept in 16 bits, takes fewer bits than the
        stored values. If not, it is no remedy, because the stored values have no error."""
        if scheme.outlier_threshold is not None:
            columns = max(columns, self.report.outlier_columns)
        return bits_per_parameter(scheme, self.report.shape, columns) < self.stored_bits


def finer_schemes(scheme: Scheme, shape: tuple[int, ...]) -> Iterator[Scheme]:
    """The scheme with finer granularities, as far as the scales are worth their bits: groups of 64
    first, as most libraries make them. Yields nothing for a cast, for a format with a fixed
    granularity, and for scales per column, because groups along a row would mix columns."""
    own = scheme.granularity
    if own is None or scheme.family in FIXED_GRANULARITY or isinstance(own, PerColumn):
        return
    rows, columns = matrix_shape(shape)
    size = rows * columns // max(1, groups_of(scheme, shape))
    kind = PerBlock if isinstance(own, PerBlock) else PerGroup
    for length in (64, SMALLEST_GROUP, 128):
        if length < size and (length < columns or kind is PerBlock):
            yield replace(scheme, granularity=kind(length))
    if isinstance(own, PerTensor | PerModel) and rows > 1:  # for tensors too narrow for groups
        yield replace(scheme, granularity=PerRow())


def groups_of(scheme: Scheme, shape: tuple[int, ...]) -> int:
    """Groups that share a scale; 0 for a cast."""
    return sum(run_lengths(scheme.granularity, shape).values())


def finer_that_save(case: Case) -> list[Scheme]:
    """The `finer_schemes` that take fewer bits than the stored values."""
    return [*filter(case.saves, finer_schemes(case.scheme, case.report.shape))]


def best_at_these_bits(case: Case, seen: set[Scheme]) -> tuple[Scheme, float] | None:
    """(scheme, expected SQNR in decibels) of the best scheme with the same granularity and no more
    bits, if it is expected to be noticeably better on Gaussian values of this size; else None."""
    best, gained = None, -math.inf
    for scheme in same_bits(case.scheme):
        added = case.bits_of(scheme) - case.report.bits_per_parameter
        if scheme in seen or scheme == case.scheme or added > SAME_BITS or not case.saves(scheme):
            continue
        db = expected_db(scheme, case) or 0.0
        gain = db - DB_PER_BIT * max(0.0, added)
        if db > case.db + NOTICEABLE_DB and gain > gained:
            best, gained = (scheme, db), gain
    return best


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
    scheme, name = case.scheme, f"int{case.scheme.bits}"
    if case.offset is None or case.offset < OFF_CENTRE or scheme.float_zero_point:
        return None
    if isinstance(scheme.granularity, PerModel):
        return None  # the range is that of the model, not of this tensor
    if scheme.family is Family.INTEGER:
        shifted = replace(scheme, scale_rule="absmax", symmetric=False, float_zero_point=True)
    else:
        if scheme.family in (Family.CAST, Family.TERNARY) or name not in SCHEME_FORMATS:
            return None
        if (case.kurtosis or 0.0) > HEAVY_TAILS or (case.outliers and case.outliers.count):
            return None
        granularity = EQUAL_GROUPS.get(scheme.family, scheme.granularity)
        shifted = Scheme(name, granularity, symmetric=False, float_zero_point=True)
    added = case.bits_of(shifted) - case.report.bits_per_parameter
    return shifted if added <= 1 and case.saves(shifted) else None
