"""Outliers of a tensor: which elements and columns, how much error they cause, what limits it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import zip_longest

from qtui.engine.answers.outliers import (
    ColumnSize,
    DecompositionSweep,
    ErrorByColumn,
    FoundOutlier,
    Granularities,
    GranularityProgress,
    GranularityRow,
    KeptColumns,
    OutlierNumbers,
    ThresholdPoint,
)
from qtui.engine.operations.detection import (
    COLUMN,
    Detected,
    columns_of,
    detect,
    threshold_of,
)
from qtui.engine.operations.session import Session, SessionTensor, finite_or_none
from qtui.engine.requests import (
    AttributionRequest,
    DecompositionRequest,
    OutliersRequest,
    SchemeRequest,
    TensorRequest,
)
from qtui.engine.task import OperationTable, Task
from qtui_core.errors import UsageError
from qtui_core.quant import ErrorReport, Scheme
from qtui_core.quant.attribution import (
    Kept,
    attribute_error,
    decomposition_sweep,
    keep_columns,
    largest,
    suspects,
)
from qtui_core.quant.columns import ColumnStatistics, threshold_ladder
from qtui_core.quant.granularities import schemes_by_granularity
from qtui_core.quant.layout import scale_shape
from qtui_core.quant.measure import decibels
from qtui_core.schemes.stepping import FIRST_THRESHOLD

COLUMNS_SENT = 64
#: The most columns that are tried one by one, each a pass over the tensor.
MOST_TRIES = 64
ROWS_SENT = 16
#: The scheme that is decomposed if the chosen one cannot have outlier columns.
DECOMPOSED = "int8:row"


def outliers(session: Session, task: Task[OutliersRequest]) -> OutlierNumbers:
    """The outliers that the task's `detection` finds at its `limit`, the outlier columns, and the
    largest columns. Sigmas are those of the tensor without an injected outlier."""
    tensor = session.tensor_of(task)
    stats = session.statistics_of(task, tensor, 0.0, 0.3)
    detected = detect(session, task, tensor, 0.3, 1.0)
    columns = columns_of(session, task, tensor, 1.0, 1.0)
    found = detected.elements
    total, chosen = int(columns.absmax.size), detected.columns
    furthest, usual = None, session.usual_of(task)
    if usual.std and usual.mean is not None and stats.min is not None and stats.max is not None:
        furthest = max(stats.max - usual.mean, usual.mean - stats.min) / usual.std
    if found is None:
        count, hit = len(chosen) * columns.rows, len(chosen)
        share, energy = len(chosen) / total if total else 0.0, None
        held = dict.fromkeys(chosen[:COLUMNS_SENT], columns.rows)
    else:
        count, hit = found.count, len(found.columns)
        share, energy = found.share, found.energy_share
        held = {c.column: c.count for c in found.columns[:COLUMNS_SENT]}
    return OutlierNumbers(
        detection=detected.by,
        limit=detected.limit,
        mean=usual.mean,
        std=usual.std,
        absmax=stats.absmax,
        furthest_sigmas=furthest,
        largest_ratio=_largest_ratio(columns),
        count=count,
        share=share,
        energy_share=energy,
        top=tuple(
            FoundOutlier(o.row, o.column, o.value, o.sigmas, o.column in detected)
            for o in (found.top if found else ())
        ),
        columns=held,
        columns_hit=hit,
        column_total=total,
        row_total=columns.rows,
        outlier_columns=chosen[:COLUMNS_SENT],
        outlier_column_count=len(chosen),
        largest=_sizes(columns, detected),
    )


def attribution(session: Session, task: Task[AttributionRequest]) -> ErrorByColumn:
    """The squared error of a scheme by column and row, and how much of it is gone if columns are
    kept in 16 bits: `tries` columns one by one, and all outlier columns of the task's `detection`
    together. Outlier columns are tried first, alternating with columns that are large or have much
    error."""
    tensor, scheme, tries = session.tensor_of(task), task.asked.scheme, task.asked.tries
    if not 0 <= tries <= MOST_TRIES:
        raise UsageError(f"0 to {MOST_TRIES} columns are tried one by one.")
    extent = session.extent_of_model(task, scheme, tensor)
    steps = tries + 3.0
    found = session.remembered(
        task,
        tensor,
        ("attribution", str(scheme)),
        lambda: attribute_error(
            tensor, scheme, model_absmax=extent, job=task.job.part(0.0, 1 / steps)
        ),
    )
    columns = columns_of(session, task, tensor, 1 / steps, 2 / steps)
    detected = detect(session, task, tensor, 2 / steps, 2 / steps)

    def keep(chosen: tuple[int, ...], step: int) -> KeptColumns:
        job = task.job.part(step / steps, (step + 1) / steps)
        kept = session.remembered(
            task,
            tensor,
            ("kept", str(scheme), chosen),
            lambda: keep_columns(tensor, found, chosen, model_absmax=extent, job=job),
        )
        largest = max(columns.magnitude(column).absmax_ratio for column in chosen)
        return _kept(kept, largest, all(column in detected for column in chosen))

    suspected = suspects(found, columns, tries)
    order = [c for pair in zip_longest(detected.columns[:tries], suspected) for c in pair]
    wanted = list(dict.fromkeys(column for column in order if column is not None))[:tries]
    tried = [keep((column,), 3 + at) for at, column in enumerate(wanted)]
    together = keep(detected.columns, 2) if detected.columns else None
    if together is not None:
        together = replace(together, columns=together.columns[:COLUMNS_SENT])
    rows, shares = found.row_shares, found.own_shares
    return ErrorByColumn(
        scheme=str(scheme),
        detection=detected.by,
        limit=detected.limit,
        sqnr_db=found.sqnr_db,
        column_total=len(shares),
        tried=tuple(sorted(tried, key=lambda kept: -kept.caused_share)),
        together=together,
        together_count=len(detected.columns),
        columns=tuple((c, float(shares[c])) for c in largest(found.by_column, COLUMNS_SENT)),
        rows=tuple((row, float(rows[row])) for row in largest(found.by_row, ROWS_SENT)),
    )


def granularities(session: Session, task: Task[SchemeRequest]) -> Granularities:
    """The error of a scheme's format under each granularity that it can have; if an outlier is
    injected, also without it. Each is reported as progress."""
    scheme, tensor = task.asked.scheme, session.tensor_of(task)
    original = session.original_of(task)
    before = [("before", original)] * (original.key != tensor.key)
    subjects: list[tuple[str, SessionTensor]] = [*before, ("rows", tensor)]
    schemes, left_out = schemes_by_granularity(scheme, tensor.shape)
    rows: dict[str, list[GranularityRow]] = {"rows": [], "before": []}
    total, done = len(schemes) * len(subjects), 0
    for candidate in schemes:
        for name, subject in subjects:
            part = done / total, (done + 1) / total
            found = session.errors_of(task, subject, candidate, *part)
            done += 1
            row = GranularityRow(
                scheme=str(candidate),
                granularity=str(candidate.granularity or ""),
                scales=math.prod(scale_shape(candidate.granularity, found.shape)),
                overhead_bits=found.bits_per_parameter - candidate.bits,
                bits_per_parameter=found.bits_per_parameter,
                mse=found.mse,
                relative_mse=found.relative_mse,
                sqnr_db=found.sqnr_db,
                gaussian_sqnr_db=found.gaussian_sqnr_db,
                saturated=found.saturated,
            )
            rows[name].append(row)
            task.progress(done / total, GranularityProgress(name, row))
    return Granularities(
        scheme=str(scheme),
        rows=tuple(rows["rows"]),
        before=tuple(rows["before"]),
        left_out=tuple((left.granularity, left.reason) for left in left_out),
        stored_bits=session.stored_bits(task),
    )


def decomposition(session: Session, task: Task[DecompositionRequest]) -> DecompositionSweep:
    """LLM.int8() decomposition at several thresholds: storage and error. One of them is the task's
    `threshold`, or that of `threshold_of` without one. Decomposes the scheme if it can have outlier
    columns, else int8 per row."""
    tensor, scheme = session.tensor_of(task), task.asked.scheme
    why = ""
    try:
        base = replace(scheme, outlier_threshold=FIRST_THRESHOLD)
    except UsageError as error:
        base, why = Scheme.parse(DECOMPOSED), str(error)
    columns = columns_of(session, task, tensor, 0.0, 0.05)
    chosen = task.asked.threshold
    if chosen is None:
        chosen = threshold_of(session, task, tensor, columns)
    thresholds = set(threshold_ladder(columns))
    if thresholds:
        thresholds.add(chosen)
        if scheme.outlier_threshold is not None:
            thresholds.add(scheme.outlier_threshold)
        if min(thresholds) < FIRST_THRESHOLD < max(thresholds):
            thresholds.add(FIRST_THRESHOLD)
    known: dict[float, ErrorReport] = session.remembered(task, tensor, ("sweep", str(base)), dict)
    missing = sorted(thresholds - known.keys(), reverse=True)
    swept = decomposition_sweep(tensor, base, missing, job=task.job.part(0.05, 1.0))
    known.update(zip(missing, swept, strict=True))
    added = _energy_added(session, task, tensor)
    swept_by = ((known[t], replace(base, outlier_threshold=t)) for t in sorted(thresholds)[::-1])
    return DecompositionSweep(
        scheme=str(replace(base, outlier_threshold=None)),
        why=why,
        threshold=chosen,
        column_total=int(columns.absmax.size),
        points=tuple(_over_original(*each, added) for each in swept_by),
    )


def _energy_added(session: Session, task: Task[TensorRequest], tensor: SessionTensor) -> float:
    """The energy (sum of squares) of a tensor with an injected outlier over that without it."""
    original = session.original_of(task)
    if original.key == tensor.key:
        return 1.0
    before = session.statistics_of(task, original, 1.0, 1.0).mean_square
    return session.statistics_of(task, tensor, 1.0, 1.0).mean_square / before if before else 1.0


def _over_original(found: ErrorReport, scheme: Scheme, added: float) -> ThresholdPoint:
    """The error relative to the energy of the original tensor, as for the granularities: the energy
    of a huge injected outlier would make the error of all other elements look small."""
    relative, sqnr_db = found.relative_mse, found.sqnr_db
    if relative is not None and added != 1.0:
        relative *= added
        sqnr_db = decibels(relative)
    return ThresholdPoint(
        threshold=scheme.outlier_threshold or 0.0,
        scheme=str(scheme),
        columns=found.outlier_columns,
        bits_per_parameter=found.bits_per_parameter,
        bytes=found.bytes,
        relative_mse=relative,
        sqnr_db=sqnr_db,
    )


def _sizes(columns: ColumnStatistics, detected: Detected) -> tuple[ColumnSize, ...]:
    """The largest columns. Detection by column lists its outlier columns first, because some may be
    large only by their root mean square."""
    first = detected.columns[:COLUMNS_SENT] if detected.by == COLUMN else ()
    ranked = dict.fromkeys((*first, *(c.column for c in columns.largest(COLUMNS_SENT))))
    return tuple(
        ColumnSize(
            c.column,
            c.absmax,
            c.rms,
            finite_or_none(c.absmax_ratio),
            finite_or_none(c.rms_ratio),
            c.column in detected,
        )
        for c in map(columns.magnitude, list(ranked)[:COLUMNS_SENT])
    )


def _largest_ratio(columns: ColumnStatistics) -> float | None:
    """The largest ratio of a column to the median column, by largest magnitude or root mean square;
    None if one of the medians is 0."""
    if not columns.median_absmax or not columns.median_rms:
        return None
    return max(
        float(columns.absmax.max()) / columns.median_absmax,
        float(columns.rms.max()) / columns.median_rms,
    )


def _kept(kept: Kept, absmax_ratio: float, outlier: bool) -> KeptColumns:
    return KeptColumns(
        outlier=outlier,
        columns=kept.columns,
        absmax_ratio=finite_or_none(absmax_ratio),
        own_share=kept.own_share,
        caused_share=kept.caused_share,
        sqnr_db=kept.sqnr_db,
    )


OPERATIONS: OperationTable = {
    "outliers": (outliers, "view", OutliersRequest),
    "attribution": (attribution, "view", AttributionRequest),
    "granularities": (granularities, "view", SchemeRequest),
    "decomposition": (decomposition, "view", DecompositionRequest),
}
