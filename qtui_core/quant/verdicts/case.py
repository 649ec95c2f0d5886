"""A measured error beside the error of ordinary values: what an explanation starts from."""

from __future__ import annotations

import math
from dataclasses import replace

from qtui_core.answers.tensors import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.segments.layout import run_lengths
from qtui_core.quant.storage import bits_per_parameter
from qtui_core.schemes.granularity import PerModel, PerTensor
from qtui_core.schemes.scheme import Family, Scheme

#: Decibels that are worth a word.
NOTICEABLE_DB = 0.5
#: Beyond this there is nothing but the rounding of float32 itself.
EXACT_DB = 120.0
#: Kurtosis from which tails, and below which their absence, explain a difference.
HEAVY_TAILS, LIGHT_TAILS = 4.0, 2.5
#: A mean of so many standard deviations leaves the levels on one side of zero to few values.
OFF_CENTRE = 1.0


@dataclass(frozen=True)
class Case:
    """A tensor with at least one nonzero element under a scheme that is not exact on it.

    Attributes:
        relative_mse: as measured.
        ordinary: the relative mse of Gaussian values of this shape which the scheme fits: a
            cast of values near 1, a scale of their own instead of one of the model, no columns
            kept in 16 bits.
        stored_bits: bits per parameter that the tensor takes as it is.
    """

    report: ErrorReport
    stats: TensorStatistics | None
    outliers: OutlierReport | None
    relative_mse: float
    ordinary: float
    stored_bits: float

    def saves(self, scheme: Scheme, columns: int = 0) -> bool:
        """Whether a scheme, with so many columns kept in 16 bits, takes fewer bits than what is
        stored: one that does not is no remedy, as the stored values have no error."""
        if scheme.outlier_threshold is not None:
            columns = max(columns, self.report.outlier_columns)
        return bits_per_parameter(scheme, self.report.shape, columns) < self.stored_bits

    @property
    def scheme(self) -> Scheme:
        return self.report.scheme

    @property
    def db(self) -> float:
        return -10 * math.log10(self.relative_mse)

    @property
    def ordinary_db(self) -> float:
        """Infinite where ordinary values are kept exactly, as groups of one element are."""
        found = decibels(self.ordinary)
        return math.inf if found is None or found > EXACT_DB else found

    @property
    def few_weigh_all(self) -> bool:
        """Whether the sum of squares is that of the outliers: k equal elements that are all of
        it give n elements a kurtosis of n/k."""
        if self.outliers is None or self.stats is None or self.stats.kurtosis is None:
            return False
        return 2 * self.stats.kurtosis * self.outliers.count > self.stats.finite

    @property
    def worse(self) -> float:
        """Decibels below what ordinary values give; negative where better."""
        return self.ordinary_db - self.db

    @property
    def rms(self) -> float:
        """Root mean square of the tensor."""
        return math.sqrt(self.report.mse / self.relative_mse)

    @property
    def offset(self) -> float | None:
        """Standard deviations between the mean and zero, infinite for a constant; None without
        statistics."""
        stats = self.stats
        if stats is None or stats.mean is None or stats.std is None:
            return None
        return abs(stats.mean) / stats.std if stats.std else math.inf

    @property
    def finite(self) -> int:
        return self.report.count - self.report.nonfinite

    @property
    def groups(self) -> int:
        """Groups that share a scale; 0 for a cast."""
        return sum(run_lengths(self.scheme.granularity, self.report.shape).values())


def make_case(
    report: ErrorReport,
    stats: TensorStatistics | None,
    outliers: OutlierReport | None,
    stored_bits: float = math.inf,
) -> Case:
    """The case of a report whose relative mse is neither None nor 0."""
    assert report.relative_mse is not None
    ordinary: float | None = report.gaussian_relative_mse
    if report.scheme.family is Family.CAST:
        ordinary = gaussian_relative_mse(report.scheme, report.shape)
    elif isinstance(report.scheme.granularity, PerModel):
        own = replace(report.scheme, granularity=PerTensor())
        ordinary = gaussian_relative_mse(own, report.shape)
    elif report.scheme.outlier_threshold is not None:
        undivided = replace(report.scheme, outlier_threshold=None)
        ordinary = gaussian_relative_mse(undivided, report.shape)
    return Case(report, stats, outliers, report.relative_mse, ordinary or 0.0, stored_bits)


def number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def percent(share: float) -> str:
    """Rounded down, so that all of something is said of all only."""
    if 0 < share < 0.01:
        return "under 1%"
    return f"{math.floor(100 * share)}%"


def db_text(db: float) -> str:
    return f"{round(db, 1) + 0.0:.1f}"


def power_text(exponent: int) -> str:
    return str(1 << exponent) if exponent <= 10 else f"2^{exponent}"
