"""Outliers: elements far from the others, and the columns that they lie in."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qtui_core.answers import (
    OUTLIER_SIGMA,
    ColumnCount,
    Outlier,
    OutlierReport,
    TensorStatistics,
)
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Job
from qtui_core.quant.elements import Elements, Segment, TensorLike, elements_of
from qtui_core.quant.layout import Float64
from qtui_core.quant.plan import scan
from qtui_core.quant.reading import Reducer
from qtui_core.quant.statistics import statistics

#: A column is crowded if chance would give fewer than this many columns as many outliers.
CHANCE = 0.01
#: Crowded columns are reported only if they are at most this share of all columns, and hold at
#: least this share of the outliers.
FEW_COLUMNS, MOST_OUTLIERS = 0.05, 0.5


Places = tuple[npt.NDArray[np.int64], Float64]


class OutlierScan(Reducer[Places]):
    """Finds the elements of a tensor that are more than `limit` away from `centre`, or at least as
    far where `inclusive`. `usual` are the statistics whose mean and standard deviation define a
    sigma. It keeps one number for each column, and the outliers of the segments at work."""

    def __init__(
        self,
        centre: float,
        limit: float,
        stats: TensorStatistics,
        usual: TensorStatistics,
        top: int,
        inclusive: bool = False,
    ) -> None:
        self._centre, self._limit, self._inclusive = centre, limit, inclusive
        self._stats, self._usual, self._top = stats, usual, top

    def begin(self, elements: Elements) -> None:
        rows, self._columns = elements.matrix
        self._per_column = np.zeros(self._columns if rows > 1 else 0, np.int64)
        self._count, self._energy = 0, 0.0
        self._furthest: Places = np.empty(0, np.int64), np.empty(0)

    def take(self, segment: Segment) -> Places:
        """The places and values of outliers."""
        values = segment.values
        # A little lower than the limit: float32 preselects, float64 decides. The centre is off by
        # up to half of its last place in float32.
        least = max(0.0, self._limit * (1 - 1e-5) - abs(self._centre) * 2.0**-23)
        distance = np.abs(values - np.float32(self._centre))
        if distance.max(initial=-1) < least:
            return np.empty(0, np.int64), np.empty(0)
        index = np.flatnonzero((distance >= least) & np.isfinite(values))
        value = values[index].astype(np.float64)
        exact = np.abs(value - self._centre)
        beyond = exact >= self._limit if self._inclusive else exact > self._limit
        return index[beyond] + segment.start, value[beyond]

    def add(self, part: Places) -> None:
        index, value = part
        self._count += index.size
        self._energy += float(np.square(value).sum())
        if self._per_column.size:
            hit, times = np.unique(index % self._columns, return_counts=True)
            self._per_column[hit] += times
        index = np.concatenate([self._furthest[0], index])
        value = np.concatenate([self._furthest[1], value])
        order = np.lexsort((index, -np.abs(value - self._centre)))[: self._top]
        self._furthest = index[order], value[order]

    def result(self) -> OutlierReport:
        stats, usual, count = self._stats, self._usual, self._count
        per_column = self._per_column
        order = np.argsort(-per_column, kind="stable")[: np.count_nonzero(per_column)]
        mean, std = usual.mean or 0.0, usual.std or 0.0
        energy = self._energy / (stats.mean_square * stats.finite) if count else 0.0
        return OutlierReport(
            sigma=None,
            count=count,
            share=count / stats.finite if count else 0.0,
            # Rounding must not make it all of the energy if other elements have some.
            energy_share=min(1.0 if count >= stats.finite - stats.zeros else 1 - 2.0**-53, energy),
            top=tuple(
                Outlier(
                    *divmod(int(i), self._columns),
                    float(v),
                    abs(float(v) - mean) / std if std else 0.0,
                )
                for i, v in zip(*self._furthest, strict=True)
            ),
            columns=tuple(ColumnCount(int(c), int(per_column[c])) for c in order),
            column_total=self._columns,
        )


def find_outliers(
    x: TensorLike,
    stats: TensorStatistics | None = None,
    sigma: float = OUTLIER_SIGMA,
    top: int = 10,
    *,
    usual: TensorStatistics | None = None,
    job: Job = IDLE,
) -> OutlierReport:
    """The outliers of `x`, which is what `quantize` takes. It is read once, or twice if its
    statistics are not given.

    Args:
        x: the tensor.
        stats: its `statistics`.
        sigma: elements further than this many standard deviations from the mean are outliers.
        top: how many of the largest outliers are listed.
        usual: the statistics whose mean and standard deviation define a sigma, if not those of the
            tensor itself: for example of the tensor before an outlier was injected.

    Raises as `measure` does.
    """
    stats = stats or statistics(x, job=job.part(0, 0))
    usual = usual or stats
    if not usual.std or usual.mean is None:
        return OutlierReport(sigma, 0, 0.0, 0.0, (), (), elements_of(x).matrix[1])
    reducer = OutlierScan(usual.mean, sigma * usual.std, stats, usual, top)
    scan(x, [reducer], job=job)
    return replace(reducer.result(), sigma=sigma)


def find_beyond(
    x: TensorLike,
    threshold: float,
    stats: TensorStatistics | None = None,
    top: int = 10,
    *,
    usual: TensorStatistics | None = None,
    job: Job = IDLE,
) -> OutlierReport:
    """The finite elements whose magnitude is at least `threshold`, which is how LLM.int8() defines
    the outliers of an activation, with 6.0 (Dettmers et al. 2022). The columns of the report are
    those that it keeps in 16 bits. Threshold and elements are compared as float32.

    Other arguments, readings and errors are those of `find_outliers`; also raises UsageError for a
    threshold that is not a magnitude above 0.
    """
    with np.errstate(over="ignore"):
        limit = float(np.float32(threshold))
    if not (math.isfinite(threshold) and limit > 0):
        raise UsageError(f"An outlier threshold is a magnitude above 0; got {threshold:g}.")
    stats = stats or statistics(x, job=job.part(0, 0))
    reducer = OutlierScan(0.0, limit, stats, usual or stats, top, inclusive=True)
    scan(x, [reducer], job=job)
    return replace(reducer.result(), threshold=threshold)


def crowded_columns(report: OutlierReport) -> tuple[int, float]:
    """How many columns hold more outliers than chance would put there, and which share of the
    outliers they hold. (0, 0.0) unless these are few columns that hold most of the outliers.

    Outliers that fall at random give each column a Poisson-distributed number. K outliers then lie
    in about K columns, which says nothing about the columns.
    """
    mean = report.count / max(1, report.column_total)
    crowded = [
        c.count
        for c in report.columns
        if c.count >= 3 and report.column_total * poisson_tail(mean, c.count) < CHANCE
    ]
    held = sum(crowded) / max(1, report.count)
    few = len(crowded) <= max(1.0, FEW_COLUMNS * report.column_total)
    return (len(crowded), held) if few and held >= MOST_OUTLIERS else (0, 0.0)


def poisson_tail(mean: float, count: int) -> float:
    """An upper bound of the probability that a Poisson number of this mean is at least `count`: the
    first term of the tail, and a geometric series that bounds the others. It is tight far above the
    mean, and 1 near it."""
    if count <= mean + 1:
        return 1.0
    first = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    return min(1.0, first / (1 - mean / (count + 1)))
