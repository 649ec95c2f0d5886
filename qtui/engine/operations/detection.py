"""Detection of outliers: by standard deviations, by magnitude, or by column."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

import numpy as np

from qtui.engine.answers.outliers import By
from qtui.engine.operations.session import Session, SessionTensor
from qtui.engine.requests import AttributionRequest, OutliersRequest, TensorRequest
from qtui.engine.task import Task
from qtui_core.answers import OUTLIER_SIGMA
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.quant import OutlierReport, find_beyond, find_outliers
from qtui_core.quant.attribution import outlier_columns
from qtui_core.quant.columns import (
    STANDS_OUT,
    ColumnScan,
    ColumnStatistics,
    threshold_ladder,
)
from qtui_core.schemes.stepping import FIRST_THRESHOLD

SIGMA: Final = "sigma"
THRESHOLD: Final = "threshold"
COLUMN: Final = "column"
#: Elements that are listed individually, the furthest first.
LISTED = 40


@dataclass(frozen=True)
class Detected:
    """What one way to detect outliers finds.

    Attributes:
        by: SIGMA, THRESHOLD or COLUMN.
        limit: for SIGMA in standard deviations; for THRESHOLD a magnitude in the tensor's unit; for
            COLUMN a multiple of the largest magnitude or root mean square of the median column.
        elements: the elements beyond the limit; None for COLUMN.
        columns: the outlier columns, the one with most outliers (for COLUMN the largest) first. For
            SIGMA the columns with outliers that also stand out, or that hold more outliers than
            chance would give. For THRESHOLD all columns with an outlier, which LLM.int8() keeps in
            16 bits. For COLUMN the columns beyond the limit.
    """

    by: By
    limit: float
    elements: OutlierReport | None
    columns: tuple[int, ...]

    def __contains__(self, column: object) -> bool:
        return column in self._columns

    @cached_property
    def _columns(self) -> frozenset[int]:
        return frozenset(self.columns)


def detect(
    session: Session,
    task: Task[OutliersRequest] | Task[AttributionRequest],
    tensor: SessionTensor,
    start: float,
    stop: float,
) -> Detected:
    """The outliers that the task's `detection` finds at its `limit`. Without a limit it is six
    sigma, the threshold of `threshold_of`, or STANDS_OUT times the median column.

    Raises UsageError for an invalid limit.
    """
    by, limit = task.asked.detection, task.asked.limit
    part = (stop - start) / 3
    columns = columns_of(session, task, tensor, start, start + part)
    job = task.job.part(start + 2 * part, stop)
    if by == COLUMN:
        ratio = STANDS_OUT if limit is None else limit
        if not (math.isfinite(ratio) and ratio > 0):
            raise UsageError(f"A column is compared with a multiple above 0; got {ratio:g}.")
        return Detected(COLUMN, ratio, None, tuple(c.column for c in columns.standing_out(ratio)))
    stats = session.statistics_of(task, tensor, start + part, start + 2 * part)
    usual = session.usual_of(task)
    if by == SIGMA:
        sigma = OUTLIER_SIGMA if limit is None else limit
        if not (math.isfinite(sigma) and sigma > 0):
            raise UsageError(f"Standard deviations are a number above 0; got {sigma:g}.")
        found = session.remembered(
            task,
            tensor,
            (SIGMA, sigma),
            lambda: find_outliers(tensor, stats, sigma, LISTED, usual=usual, job=job),
        )
        hit = {c.column for c in found.columns}
        stand_out = tuple(c for c in outlier_columns(columns, found) if c in hit)
        return Detected(SIGMA, sigma, found, stand_out)
    threshold = threshold_of(session, task, tensor, columns) if limit is None else limit
    found = session.remembered(
        task,
        tensor,
        (THRESHOLD, threshold),
        lambda: find_beyond(tensor, threshold, stats, LISTED, usual=usual, job=job),
    )
    return Detected(THRESHOLD, threshold, found, tuple(c.column for c in found.columns))


def columns_of(
    session: Session, task: Task[TensorRequest], tensor: SessionTensor, start: float, stop: float
) -> ColumnStatistics:
    """The magnitudes of all columns."""
    columns: ColumnStatistics
    [columns] = session.find(task, tensor, [ColumnScan()], start, stop)
    return columns


def threshold_of(
    session: Session, task: Task[TensorRequest], tensor: SessionTensor, columns: ColumnStatistics
) -> float:
    """The default threshold: for an activation that of LLM.int8(). Weights have another scale: for
    them it is the largest threshold of the ladder that keeps as many columns as stand out, at
    least one."""
    ladder = threshold_ladder(columns)
    if not ladder or task.asked.source != "weight":
        return FIRST_THRESHOLD
    outliers = session.outliers_of(task, tensor, 0.0, 1.0)
    wanted = max(1, len(outlier_columns(columns, outliers)))
    with np.errstate(over="ignore"):  # no column reaches the first, which may be no float32
        kept = np.count_nonzero(columns.absmax >= np.array(ladder, np.float32)[:, None], axis=1)
    return next((t for t, count in zip(ladder, kept, strict=True) if count >= wanted), ladder[-1])
