"""Outliers of a tensor: which they are, what they cost, and what would confine them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from qtui_core.dataclass import dataclass

#: How outliers are detected: by standard deviations, by magnitude, or as columns.
By = Literal["sigma", "threshold", "column"]


@dataclass(frozen=True)
class FoundOutlier:
    """One element, and how many standard deviations it is from the mean; whether its column is
    an outlier column."""

    row: int
    column: int
    value: float
    sigmas: float
    outlier: bool


@dataclass(frozen=True)
class ColumnSize:
    """How large a column is; ratios are to the median column, None beside a median of 0.
    Whether it is an outlier column."""

    column: int
    absmax: float
    rms: float
    absmax_ratio: float | None
    rms_ratio: float | None
    outlier: bool


@dataclass(frozen=True)
class OutlierNumbers:
    """What one way to detect outliers finds beyond its limit: how many elements, the furthest,
    and by column. `outlier_columns` are the first of the columns it makes outliers, `largest`
    the largest of all. `furthest_sigmas` is how far the furthest element is from the mean, None
    where all are the same, `largest_ratio` the largest size of a column over that of the median
    one, None beside a median of 0. By column `top` is empty and `energy_share` None."""

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
    """What a scheme would do with these columns in 16 bits. `own_share` of the squared error
    is in them; `caused_share` of it would be gone. `absmax_ratio` is that of the largest to the
    median column, None beside a median of 0. `outlier` where all are outlier columns."""

    outlier: bool
    columns: tuple[int, ...]
    absmax_ratio: float | None
    own_share: float
    caused_share: float
    sqnr_db: float | None


@dataclass(frozen=True)
class ErrorByColumn:
    """Where the squared error of a scheme is. `tried` are single columns, the one that would
    bring most first; `together` all `together_count` outlier columns that the detection finds,
    of which it names the first; `columns` and `rows` (index, share)."""

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
    """The error of a format under one granularity (an empty text for a cast); `saturated` and
    `overflowed` elements are beyond its largest number, and the latter in no error."""

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
    overflowed: int = 0


@dataclass(frozen=True)
class GranularityTold:
    """A row as it becomes known: one of the `rows` of Granularities, or of those `before`."""

    name: str
    row: GranularityRow


@dataclass(frozen=True)
class Granularities:
    """A row for each granularity, from coarse to fine; `before` are the same rows without the
    injected outlier, empty if there is none. `left_out` are (granularity, why). A row that takes
    `stored_bits` or more is no remedy, as it saves nothing."""

    scheme: str
    rows: tuple[GranularityRow, ...]
    before: tuple[GranularityRow, ...]
    left_out: tuple[tuple[str, str], ...]
    stored_bits: float = math.inf

    def saves(self, row: GranularityRow, kept: float = 0.0) -> bool:
        """Whether a row takes fewer bits than what is stored, this share of the columns kept in
        16 bits."""
        return row.bits_per_parameter + 16 * kept < self.stored_bits

    @property
    def own(self) -> GranularityRow | None:
        """The row of the scheme itself."""
        return next((row for row in self.rows if row.scheme == self.scheme), None)

    def without(self, row: GranularityRow) -> GranularityRow | None:
        """The same granularity before the injection."""
        return next((other for other in self.before if other.scheme == row.scheme), None)

    def decibels(self, row: GranularityRow) -> float | None:
        """How far the error is below the values, dB: the SQNR. With an outlier injected, below
        the values without it: a large one adds so much signal that the SQNR may even rise while
        every other element is lost."""
        before = self.without(row)
        if before is None:
            return row.sqnr_db
        if not (before.relative_mse and row.mse):
            return None
        return -10 * math.log10(row.mse / (before.mse / before.relative_mse))

    def loss(self, row: GranularityRow) -> float | None:
        """What the injected outlier takes from a granularity, dB."""
        before, after = self.without(row), self.decibels(row)
        if before is None or before.sqnr_db is None or after is None:
            return None
        return before.sqnr_db - after


@dataclass(frozen=True)
class ThresholdPoint:
    """What LLM.int8() decomposition does at one threshold."""

    threshold: float
    scheme: str
    columns: int
    bits_per_parameter: float
    bytes: int
    relative_mse: float | None
    sqnr_db: float | None


@dataclass(frozen=True)
class DecompositionSweep:
    """Points of descending thresholds, `threshold` that of one of them, unless there are none.
    `why` says why it is not the chosen scheme that is decomposed, empty where it is."""

    scheme: str
    why: str
    threshold: float
    column_total: int
    points: tuple[ThresholdPoint, ...]

    def at(self, threshold: float) -> ThresholdPoint | None:
        """The point of this threshold, if it is among them."""
        return next((point for point in self.points if point.threshold == threshold), None)

    @property
    def chosen(self) -> int:
        """Where the threshold stands."""
        return min(
            range(len(self.points)),
            key=lambda at: abs(self.points[at].threshold - self.threshold),
            default=0,
        )
