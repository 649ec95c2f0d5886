"""Answers about outliers: which elements and columns, how much error they cause, what limits it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from qtui_core.dataclass import dataclass

#: How outliers are detected: by standard deviations, by magnitude, or as columns.
By = Literal["sigma", "threshold", "column"]


@dataclass(frozen=True)
class FoundOutlier:
    """An element and its distance from the mean in standard deviations. `outlier` says whether its
    column is an outlier column."""

    row: int
    column: int
    value: float
    sigmas: float
    outlier: bool


@dataclass(frozen=True)
class ColumnSize:
    """The largest magnitude and the root mean square of a column, and their ratios to those of the
    median column (None if that is 0). `outlier` says whether it is an outlier column."""

    column: int
    absmax: float
    rms: float
    absmax_ratio: float | None
    rms_ratio: float | None
    outlier: bool


@dataclass(frozen=True)
class OutlierNumbers:
    """What one way to detect outliers finds.

    Attributes:
        detection, limit: the way, and its limit: standard deviations, a magnitude, or a multiple of
            the median column.
        mean, std: with which sigmas are counted.
        furthest_sigmas: the distance of the furthest element from the mean; None if all elements
            are equal.
        largest_ratio: the size of the largest column over that of the median column; None if that
            is 0.
        count, share, energy_share: of the elements beyond the limit; for detection by column, of
            the elements in outlier columns, without `energy_share`.
        top: the furthest of them; empty for detection by column.
        columns: column -> how many of them it holds, for the first of `columns_hit` columns.
        outlier_columns: the first of `outlier_column_count` outlier columns.
        largest: the largest columns of the tensor.
    """

    detection: By
    limit: float
    mean: float | None
    std: float | None
    absmax: float
    furthest_sigmas: float | None
    largest_ratio: float | None
    count: int
    share: float
    energy_share: float | None
    top: tuple[FoundOutlier, ...]
    columns: Mapping[int, int]
    columns_hit: int
    column_total: int
    row_total: int
    outlier_columns: tuple[int, ...]
    outlier_column_count: int
    largest: tuple[ColumnSize, ...]


@dataclass(frozen=True)
class KeptColumns:
    """The effect of keeping some columns in 16 bits under a scheme.

    Attributes:
        outlier: whether all of them are outlier columns.
        absmax_ratio: absmax of the largest of them over that of the median column; None if that
            is 0.
        own_share: the share of the squared error that lies in them.
        caused_share: the share of the squared error that would be gone.
        sqnr_db: the SQNR with these columns kept; None without an error.
    """

    outlier: bool
    columns: tuple[int, ...]
    absmax_ratio: float | None
    own_share: float
    caused_share: float
    sqnr_db: float | None


@dataclass(frozen=True)
class ErrorByColumn:
    """Where the squared error of a scheme lies.

    Attributes:
        tried: single columns, the one whose keeping gains most first.
        together: all `together_count` outlier columns of the detection at once; it names the first.
        columns, rows: (index, share of the squared error), the largest share first.
    """

    scheme: str
    detection: By
    limit: float
    sqnr_db: float | None
    column_total: int
    tried: tuple[KeptColumns, ...]
    together: KeptColumns | None
    together_count: int
    columns: tuple[tuple[int, float], ...]
    rows: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GranularityRow:
    """The error of a format under one granularity, whose text is empty for a cast. `saturated`
    counts elements beyond its largest number.
    `overhead_bits` are bits per element besides the codes."""

    scheme: str
    granularity: str
    scales: int
    overhead_bits: float
    bits_per_parameter: float
    mse: float
    relative_mse: float | None
    sqnr_db: float | None
    gaussian_sqnr_db: float | None
    saturated: int = 0


@dataclass(frozen=True)
class GranularityProgress:
    """A row as soon as it is measured; `name` says to which field of Granularities it belongs:
    `rows` or `before`."""

    name: str
    row: GranularityRow


@dataclass(frozen=True)
class Granularities:
    """The error of a format under each granularity.

    Attributes:
        rows: from coarse to fine.
        before: the same rows without the injected outlier; empty if none is injected.
        left_out: (granularity, why it is left out).
        stored_bits: bits per element of the stored tensor. A row that takes as many saves nothing,
            so it is not advised.
    """

    scheme: str
    rows: tuple[GranularityRow, ...]
    before: tuple[GranularityRow, ...]
    left_out: tuple[tuple[str, str], ...]
    stored_bits: float = math.inf

    def saves(self, row: GranularityRow, kept: float = 0.0) -> bool:
        """Whether a row takes fewer bits than the stored tensor if the share `kept` of the columns
        stays in 16 bits."""
        return row.bits_per_parameter + 16 * kept < self.stored_bits

    @property
    def own(self) -> GranularityRow | None:
        """The row of the scheme itself."""
        return next((row for row in self.rows if row.scheme == self.scheme), None)

    def without(self, row: GranularityRow) -> GranularityRow | None:
        """The same granularity before the injection."""
        return next((other for other in self.before if other.scheme == row.scheme), None)

    def decibels(self, row: GranularityRow) -> float | None:
        """The SQNR of a row in decibels. If an outlier is injected, the signal is that of the
        tensor
        without it: a large outlier adds so much signal that the SQNR could rise although every
        other element is lost."""
        before = self.without(row)
        if before is None:
            return row.sqnr_db
        if not (before.relative_mse and row.mse):
            return None
        return -10 * math.log10(row.mse / (before.mse / before.relative_mse))

    def loss(self, row: GranularityRow) -> float | None:
        """The decibels that a granularity loses by the injected outlier; None if unknown."""
        before, after = self.without(row), self.decibels(row)
        if before is None or before.sqnr_db is None or after is None:
            return None
        return before.sqnr_db - after


@dataclass(frozen=True)
class ThresholdPoint:
    """LLM.int8() decomposition at one threshold: columns kept, storage, and error."""

    threshold: float
    scheme: str
    columns: int
    bits_per_parameter: float
    bytes: int
    relative_mse: float | None
    sqnr_db: float | None


@dataclass(frozen=True)
class DecompositionSweep:
    """LLM.int8() decomposition at several thresholds.

    Attributes:
        scheme: the scheme that is decomposed.
        why: why that is not the chosen scheme; empty if it is.
        threshold: the chosen one, which one of the points has.
        points: by descending threshold; empty for a tensor without elements.
    """

    scheme: str
    why: str
    threshold: float
    column_total: int
    points: tuple[ThresholdPoint, ...]

    def at(self, threshold: float) -> ThresholdPoint | None:
        """The point with this threshold; None if there is none."""
        return next((point for point in self.points if point.threshold == threshold), None)

    @property
    def chosen(self) -> int:
        """The index of the chosen threshold among the points."""
        return min(
            range(len(self.points)),
            key=lambda at: abs(self.points[at].threshold - self.threshold),
            default=0,
        )
