"""Which columns cause the error of a tensor, and what keeping them in 16 bits costs and gains.

There are two shares, which answer different questions. A column's *own* share is the part of the
squared error in its elements. Its *caused* share is the part that would vanish if the column were
kept in 16 bits: an outlier is the best quantized element of its group, while its neighbours lose
precision to the scale that it sets. So the caused share of an outlier column may be the whole
error, though its own share is almost nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qtui_core.answers import ErrorReport, OutlierReport
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Job
from qtui_core.quant.columns import ColumnScan, ColumnStatistics, decompose
from qtui_core.quant.elements import (
    Elements,
    ModelExtent,
    Replaced,
    Segment,
    TensorLike,
    elements_of,
)
from qtui_core.quant.layout import Float64, rectangles
from qtui_core.quant.measure import ErrorScan, decibels, element_errors
from qtui_core.quant.outliers import FEW_COLUMNS, crowded_columns
from qtui_core.quant.plan import (
    PlanScan,
    SchemeReducer,
    first_passes,
    scan,
    unread_plan,
)
from qtui_core.schemes.scheme import Scheme

#: The most columns that are tried one by one: each trial quantizes the whole tensor once more.
MAX_TRIED = 8


@dataclass(frozen=True, eq=False)
class Attribution:
    """Where in a tensor, seen as a matrix, the squared error of a scheme lies. Only elements count
    that are finite and stay finite.

    Attributes:
        scheme: the scheme.
        by_column, by_row: sums of (x - dequantized x)², float64 `[columns]` and `[rows]`.
        squared: the sum of x².
    """

    scheme: Scheme
    by_column: Float64
    by_row: Float64
    squared: float

    @property
    def squared_error(self) -> float:
        return float(self.by_column.sum())

    @property
    def own_shares(self) -> Float64:
        """The share of the squared error that lies in each column, float64 `[columns]`. They add up
        to 1, or are all 0 if there is no error."""
        return self.by_column / (self.squared_error or 1.0)

    @property
    def row_shares(self) -> Float64:
        """The share of the squared error that lies in each row, float64 `[rows]`."""
        return self.by_row / (self.squared_error or 1.0)

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in dB; None if there is no noise or no signal."""
        return decibels(self.squared_error / self.squared) if self.squared else None

    def own_share(self, columns: Sequence[int]) -> float:
        """The share of the squared error that lies in these columns together."""
        return float(self.own_shares[np.unique(np.array(columns, np.int64))].sum())


def largest(sums: Float64, count: int) -> tuple[int, ...]:
    """The places of the largest sums, which are of columns or rows, largest first and above 0."""
    order = np.argsort(-sums, kind="stable")[:count]
    return tuple(int(place) for place in order if sums[place] > 0)


class AttributionScan(SchemeReducer[list[Any]]):
    """The error of a scheme by column and by row. It keeps two numbers for each column and one for
    each row."""

    def begin(self, elements: Elements) -> None:
        rows, self._columns = elements.matrix
        self._wrong, self._squared = np.zeros(self._columns), np.zeros(self._columns)
        self._wrong_by_row = np.zeros(rows)

    def take(self, segment: Segment) -> list[Any]:
        """Of rectangles: rows, columns, and the sums over them."""
        _, values, magnitude = element_errors(self.plan, segment)
        return [
            (
                rows,
                across,
                # In float64: float32 sums down a column are not pairwise.
                np.einsum("ij,ij->j", wrong, wrong, dtype=np.float64),
                np.einsum("ij,ij->j", value, value, dtype=np.float64),
                np.einsum("ij,ij->i", wrong, wrong, dtype=np.float64),
            )
            for rows, across, (wrong, value) in rectangles(
                segment.start, self._columns, magnitude, values
            )
        ]

    def add(self, part: list[Any]) -> None:
        for rows, across, wrong, squared, wrong_by_row in part:
            self._wrong[across] += wrong
            self._squared[across] += squared
            self._wrong_by_row[rows] += wrong_by_row

    def result(self) -> Attribution:
        squared = float(self._squared.sum())
        return Attribution(self.scheme, self._wrong, self._wrong_by_row, squared)


@dataclass(frozen=True)
class Kept:
    """What a scheme would do if some columns were kept in 16 bits.

    Attributes:
        columns: the columns that are kept.
        own_share: the share of today's squared error that lies in them.
        caused_share: the share of today's squared error that vanishes once they are kept: 1 -
            `squared_error` / today's. It can be slightly negative, if the other columns happen to
            fit their new levels worse; it is 0 if there is no error today.
        squared_error: that of the other columns, whose scales then ignore the kept ones. The
            rounding of the kept columns to 16 bits is not counted: in float16 it is at most 2^-22
            of their squares, except for elements beyond 65504 or below 2^-14.
        sqnr_db: of the whole tensor then; None if there is no noise or no signal.
    """

    columns: tuple[int, ...]
    own_share: float
    caused_share: float
    squared_error: float
    sqnr_db: float | None


def attribute_error(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    job: Job = IDLE,
) -> Attribution:
    """Where the squared error of a scheme lies. Arguments, passes and errors are those of
    `measure`."""
    reducer = AttributionScan(scheme)
    scan(x, [reducer], model_absmax=model_absmax, job=job)
    return reducer.result()


def keep_columns(
    x: TensorLike,
    attribution: Attribution,
    columns: Sequence[int],
    *,
    model_absmax: ModelExtent | None = None,
    job: Job = IDLE,
) -> Kept:
    """What the scheme of an attribution would do to the same tensor if `columns` were kept in 16
    bits: the tensor is quantized without them, so that no scale depends on them, and the error of
    the other columns is added up. Arguments, passes and errors are those of `measure`."""
    kept = np.unique(np.array(columns, np.int64))
    without = attribute_error(
        Replaced(x, None, kept.tolist(), math.nan),
        attribution.scheme,
        model_absmax=model_absmax,
        job=job,
    )
    before = attribution.squared_error
    left = float(np.delete(without.by_column, kept).sum())
    return Kept(
        columns=tuple(int(column) for column in kept),
        own_share=attribution.own_share(columns),
        caused_share=1 - left / before if before else 0.0,
        squared_error=left,
        sqnr_db=decibels(left / attribution.squared) if attribution.squared else None,
    )


def suspects(attribution: Attribution, columns: ColumnStatistics, count: int) -> tuple[int, ...]:
    """The columns that are worth trying, `count` in all. They alternate between the columns of the
    largest magnitude, which set the scales of others, and the columns that hold the most error.

    Raises UsageError if `count` is more than MAX_TRIED.
    """
    if not 0 <= count <= MAX_TRIED:
        raise UsageError(f"At most {MAX_TRIED} columns are tried one by one; {count} is too many.")
    large = [c.column for c in columns.largest(count) if c.absmax]
    wrong = largest(attribution.by_column, count)
    chosen: dict[int, None] = {}
    for place in range(count):
        for order in (large, wrong):
            if place < len(order):
                chosen[order[place]] = None
    return tuple(chosen)[:count]


def outlier_columns(columns: ColumnStatistics, outliers: OutlierReport) -> tuple[int, ...]:
    """The columns that cause the error of a tensor, the worst first; empty if there are none.

    They are the columns whose magnitude stands out from the median column's. If there are none,
    they are those that hold more six-sigma elements than chance would put there, provided that
    these are few columns and hold most of the outliers.
    """
    chosen = tuple(c.column for c in columns.standing_out())
    if not chosen:
        crowded, _ = crowded_columns(outliers)
        chosen = tuple(c.column for c in outliers.columns[:crowded])
    return chosen if len(chosen) <= max(1.0, FEW_COLUMNS * columns.absmax.size) else ()


def decomposition_sweep(
    x: TensorLike,
    scheme: Scheme,
    thresholds: Sequence[float],
    *,
    job: Job = IDLE,
) -> tuple[ErrorReport, ...]:
    """The result of `measure` for the scheme with each outlier threshold, in the order of
    `thresholds`, without the outliers.

    Reads the tensor twice, or three times with a scale per tensor, however many thresholds there
    are.

    Raises:
        Cancelled: the job was cancelled.
        UsageError: `x` is not a tensor of real numbers, a threshold is not above 0, or the scheme
            has no outlier columns.
    """
    schemes = [replace(scheme, outlier_threshold=float(t)) for t in thresholds]
    if not schemes:
        return ()
    elements, columns = elements_of(x), ColumnScan()
    reads = 1 + first_passes(schemes[0], elements.shape)
    jobs = job.parts([1] * reads)
    scan(elements, [columns], job=next(jobs))
    absmax = columns.result().absmax
    plans = {
        one: replace(
            unread_plan(one, elements.shape),
            decomposition=decompose(one.granularity, threshold, absmax),
        )
        for one, threshold in zip(schemes, thresholds, strict=True)
    }
    if reads > 2:
        finding = [PlanScan(plan) for plan in plans.values()]
        scan(elements, finding, job=next(jobs))
        plans = {one: plan.result() for one, plan in zip(plans, finding, strict=True)}
    errors = [ErrorScan(one) for one in schemes]
    scan(elements, errors, plans=plans, job=next(jobs))
    return tuple(error.result() for error in errors)
