"""The facts from which a verdict on one scheme and one tensor follows."""

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
from qtui_core.quantities import plural
from qtui_core.schemes.granularity import PerModel, PerTensor
from qtui_core.schemes.scheme import Family, Scheme

#: Decibels: smaller differences are not mentioned.
NOTICEABLE_DB = 0.5
#: Decibels: beyond this SQNR only the rounding of float32 itself remains.
EXACT_DB = 120.0
#: Kurtosis above which heavy tails, and below which light tails, explain a difference.
HEAVY_TAILS, LIGHT_TAILS = 4.0, 2.5
#: If the mean is this many standard deviations from zero, few values use the levels on the other
#: side.
OFF_CENTRE = 1.0


def nonfinite_sentence(report: ErrorReport) -> str:
    """What is said of elements that are not finite; "" without any."""
    if not report.nonfinite:
        return ""
    rest = "every figure is over the finite rest"
    if report.nonfinite == report.count:
        rest = "no element is finite, so there is nothing to measure"
    return (
        f"{plural(report.nonfinite, 'element is', 'elements are')} NaN or infinite: find out where "
        f"{'it comes' if report.nonfinite == 1 else 'they come'} from first; {rest}."
    )


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
        """`ordinary` as an SQNR in decibels; infinite if Gaussian values are kept exactly, as in
        groups of one element."""
        found = decibels(self.ordinary)
        return math.inf if found is None or found > EXACT_DB else found

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
        return sum(run_lengths(self.scheme.granularity, self.report.shape).values())

    def bits_of(self, scheme: Scheme) -> float:
        """Bits per parameter of the tensor under another scheme without kept columns."""
        return bits_per_parameter(scheme, self.report.shape)

    def saves(self, scheme: Scheme, columns: int = 0) -> bool:
        """Whether a scheme, with `columns` columns kept in 16 bits, takes fewer bits than the
        stored values. If not, it is no remedy, because the stored values have no error."""
        if scheme.outlier_threshold is not None:
            columns = max(columns, self.report.outlier_columns)
        return bits_per_parameter(scheme, self.report.shape, columns) < self.stored_bits
