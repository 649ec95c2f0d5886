"""Elements far from the rest, and the columns they sit in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qtui_core.quant.elements import Segment, TensorLike, elements_of
from qtui_core.quant.parallel import Scratch, fractions_of, map_segments, thread_count
from qtui_core.quant.statistics import TensorStatistics, statistics


@dataclass(frozen=True)
class Outlier:
    """Element [row, column] of the tensor seen as a matrix; `sigmas` is its distance from
    the mean in standard deviations, positive."""

    row: int
    column: int
    value: float
    sigmas: float


@dataclass(frozen=True)
class ColumnCount:
    """How many outliers a column has."""

    column: int
    count: int


@dataclass(frozen=True)
class OutlierReport:
    """Elements further than `sigma` standard deviations from the mean.

    Attributes:
        share: of the finite elements, 0 to 1.
        energy_share: of the sum of squares, 0 to 1.
        top: the furthest, furthest first.
        columns: every column that has outliers, the one with most first. Empty for a tensor
            of one row, where a column is an element.
        column_total: columns of the tensor.
    """

    sigma: float
    count: int
    share: float
    energy_share: float
    top: tuple[Outlier, ...]
    columns: tuple[ColumnCount, ...]
    column_total: int


@dataclass(frozen=True)
class _Found:
    index: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]


def find_outliers(
    x: TensorLike,
    stats: TensorStatistics | None = None,
    sigma: float = 6.0,
    top: int = 10,
    *,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> OutlierReport:
    """Outliers of what `quantize` takes, read once (twice without its `statistics`).

    Memory: one number for each column, and the outliers of the segments at work. Raises as
    `measure` does.
    """
    elements = elements_of(x)
    if stats is None:
        stats = statistics(x, cancelled=cancelled, threads=threads)
    rows, columns = elements.matrix
    per_column = np.zeros(columns if rows > 1 else 0, np.int64)
    count, energy = 0, 0.0
    furthest = _Found(np.empty(0, np.int64), np.empty(0))
    if not stats.std or stats.mean is None:
        return OutlierReport(sigma, 0, 0.0, 0.0, (), (), columns)
    mean, limit = stats.mean, sigma * stats.std
    # A little lower than the limit: float32 preselects, float64 decides. The mean itself is
    # off by up to half of its last place in float32.
    preselected = max(0.0, limit * (1 - 1e-5) - abs(mean) * 2.0**-23)

    def search(segment: Segment, scratch: Scratch) -> _Found | None:
        with np.errstate(all="ignore"):
            values = segment.float32()
            distance = np.subtract(
                values, np.float32(mean), out=scratch.take("distance", values.size, np.float32)
            )
            np.abs(distance, out=distance)
            if distance.max() < preselected:
                return None
            index = np.flatnonzero((distance >= preselected) & np.isfinite(values))
            value = values[index].astype(np.float64)
            beyond = np.abs(value - mean) > limit
            return _Found(index[beyond] + segment.start, value[beyond])

    for found in map_segments(
        search,
        elements.segments(),
        threads=thread_count(elements.count, threads),
        advance=fractions_of(progress, elements.count),
        cancelled=cancelled,
    ):
        if found is None or not found.index.size:
            continue
        count += found.index.size
        energy += float(np.square(found.value).sum())
        if per_column.size:
            hit, times = np.unique(found.index % columns, return_counts=True)
            per_column[hit] += times
        furthest = _keep_furthest(furthest, found, mean, top)
    order = np.argsort(-per_column, kind="stable")[: np.count_nonzero(per_column)]
    return OutlierReport(
        sigma=sigma,
        count=count,
        share=count / stats.finite,
        energy_share=min(1.0, energy / (stats.mean_square * stats.finite)) if count else 0.0,
        top=tuple(
            Outlier(*divmod(int(i), columns), float(v), abs(float(v) - mean) / stats.std)
            for i, v in zip(furthest.index, furthest.value, strict=True)
        ),
        columns=tuple(ColumnCount(int(c), int(per_column[c])) for c in order),
        column_total=columns,
    )


def columns_holding(report: OutlierReport, share: float = 0.5) -> tuple[int, float]:
    """The fewest columns that hold at least `share` of the outliers, and the share they
    hold; (0, 0.0) where there are none to tell."""
    held = 0
    for number, column in enumerate(report.columns, 1):
        held += column.count
        if held >= math.ceil(share * report.count):
            return number, held / report.count
    return 0, 0.0


def _keep_furthest(kept: _Found, found: _Found, mean: float, top: int) -> _Found:
    index = np.concatenate([kept.index, found.index])
    value = np.concatenate([kept.value, found.value])
    order = np.lexsort((index, -np.abs(value - mean)))[:top]
    return _Found(index[order], value[order])
