"""The facts that a verdict on one scheme and one tensor is drawn from."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

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
    """What is known of a tensor under a scheme.

    Attributes:
        report: the error of the scheme on the tensor, measured.
        stats, outliers: of the same tensor, where they are known.
        others: other schemes measured on the same tensor that a remedy may name.
        stored_bits: bits per parameter that the tensor takes as it is.
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
        """Signal to noise as measured; infinite where nothing was lost."""
        return -10 * math.log10(self.relative_mse) if self.relative_mse else math.inf

    @cached_property
    def ordinary(self) -> float:
        """The relative mse of Gaussian values of this shape which the scheme fits: a cast of
        values near 1, a scale of their own instead of one of the model, no columns kept in 16
        bits."""
        scheme = self.scheme
        found = self.report.gaussian_relative_mse
        if scheme.family is Family.CAST:
            found = gaussian_relative_mse(scheme, self.report.shape)
        elif isinstance(scheme.granularity, PerModel):
            own = replace(scheme, granularity=PerTensor())
            found = gaussian_relative_mse(own, self.report.shape)
        elif scheme.outlier_threshold is not None:
            undivided = replace(scheme, outlier_threshold=None)
            found = gaussian_relative_mse(undivided, self.report.shape)
        return found or 0.0

    @property
    def ordinary_db(self) -> float:
        """Signal to noise of ordinary values; infinite where they are kept exactly, as groups of
        one element are."""
        found = decibels(self.ordinary)
        return math.inf if found is None or found > EXACT_DB else found

    @property
    def worse(self) -> float:
        """Decibels below what ordinary values give; negative where better."""
        return self.ordinary_db - self.db

    @property
    def rms(self) -> float:
        """Root mean square of the tensor, from its error."""
        return math.sqrt(self.report.mse / self.relative_mse)

    @property
    def kurtosis(self) -> float | None:
        return None if self.stats is None else self.stats.kurtosis

    @property
    def few_weigh_all(self) -> bool:
        """Whether the sum of squares is that of the outliers: k equal elements that are all of
        it give n elements a kurtosis of n/k."""
        if self.outliers is None or self.stats is None or self.stats.kurtosis is None:
            return False
        return 2 * self.stats.kurtosis * self.outliers.count > self.stats.finite

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
        """How many elements are finite."""
        return self.report.count - self.report.nonfinite

    @property
    def groups(self) -> int:
        """Groups that share a scale; 0 for a cast."""
        return sum(run_lengths(self.scheme.granularity, self.report.shape).values())

    def bits_of(self, scheme: Scheme) -> float:
        """Bits per parameter of the tensor under another scheme without kept columns."""
        return bits_per_parameter(scheme, self.report.shape)

    def saves(self, scheme: Scheme, columns: int = 0) -> bool:
        """Whether a scheme, with so many columns kept in 16 bits, takes fewer bits than what is
        stored: one that does not is no remedy, as the stored values have no error."""
        if scheme.outlier_threshold is not None:
            columns = max(columns, self.report.outlier_columns)
        return bits_per_parameter(scheme, self.report.shape, columns) < self.stored_bits
