"""Outliers of a tensor: which they are, what they cost, and what would confine them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

from qtui.engine.operations.session import Session, Subject, watched
from qtui.engine.task import Result, Task
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, find_beyond
from qtui_core.quant.attribution import (
    Attribution,
    Kept,
    attribute_error,
    keep_columns,
    outlier_columns,
    suspects,
)
from qtui_core.quant.columns import ColumnStatistics, column_statistics, threshold_ladder
from qtui_core.quant.decomposition_sweep import decomposition_sweep
from qtui_core.quant.granularities import granularity_error, schemes_by_granularity

COLUMNS_SENT = 64
ROWS_SENT = 16
#: LLM.int8()'s own, for activations (Dettmers et al. 2022).
USUAL_THRESHOLD = 6.0
DECOMPOSED = "int8:row"


def outliers(session: Session, task: Task) -> Result:
    """The elements beyond six sigma and the columns they are in; the columns that are large
    beside the median one; with a `threshold`, what is at least so large."""
    tensor = session.tensor_of(task)
    stats = session.statistics_of(task, tensor, 0.0, 0.3)
    found = session.outliers_of(task, tensor, 0.3, 0.6)
    columns = column_statistics(tensor, **watched(task, 0.6, 0.9))
    data: dict[str, Any] = {
        "std": stats.std,
        "mean": stats.mean,
        "count": found.count,
        "share": found.share,
        "energy_share": found.energy_share,
        "top": [[o.row, o.column, o.value, o.sigmas] for o in found.top],
        "columns": [[c.column, c.count] for c in found.columns[:COLUMNS_SENT]],
        "columns_hit": len(found.columns),
        "column_total": found.column_total,
        "row_total": columns.rows,
        "median_absmax": columns.median_absmax,
        "median_rms": columns.median_rms,
        "outlier_columns": list(outlier_columns(columns, found))[:COLUMNS_SENT],
        "largest": _magnitudes(columns),
    }
    threshold = task.params.get("threshold")
    if threshold is not None:
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise UsageError("The engine's outliers takes a threshold as a number.")
        beyond = find_beyond(tensor, float(threshold), stats, **watched(task, 0.9, 1.0))
        data["beyond"] = {
            "threshold": threshold,
            "count": beyond.count,
            "columns": len(columns.at_least(float(threshold))),
        }
    return Result(data)


def attribution(session: Session, task: Task) -> Result:
    """The squared error of a scheme by column and row, and what keeping columns in 16 bits
    would bring: `tries` of them one by one, and all outlier columns together."""
    tensor, scheme, tries = session.tensor_of(task), session.scheme_of(task), task.integer("tries")
    extent = session.extent_of_model(task, scheme)
    steps = tries + 3.0
    found = attribute_error(tensor, scheme, model_absmax=extent, **watched(task, 0.0, 1 / steps))
    columns = column_statistics(tensor, **watched(task, 1 / steps, 2 / steps))
    outliers = session.outliers_of(task, tensor, 2 / steps, 2 / steps)

    def keep(chosen: tuple[int, ...], step: int) -> dict[str, Any]:
        watch = watched(task, step / steps, (step + 1) / steps)
        kept = keep_columns(tensor, found, chosen, model_absmax=extent, **watch)
        return _kept(kept, max(columns.magnitude(column).absmax_ratio for column in chosen))

    together = outlier_columns(columns, outliers)
    tried = [keep((column,), 3 + at) for at, column in enumerate(suspects(found, columns, tries))]
    rows = found.row_shares
    return Result(
        {
            "scheme": str(scheme),
            "sqnr_db": found.sqnr_db,
            "column_total": len(found.own_shares),
            "row_total": len(rows),
            "tried": sorted(tried, key=lambda kept: -kept["caused_share"]),
            "together": keep(together, 2) if together else None,
            "columns": _shares(found),
            "rows": [[row, float(rows[row])] for row in found.most_error_rows(ROWS_SENT)],
        }
    )


def granularities(session: Session, task: Task) -> Result:
    """The error of a scheme's format under each granularity it can have; where an outlier was
    put in, the same without it. Told one by one as progress."""
    scheme, tensor = session.scheme_of(task), session.tensor_of(task)
    original = session.original_of(task)
    subjects: list[tuple[str, Subject]] = [("rows", tensor)]
    if original.key != tensor.key:
        subjects.insert(0, ("before", original))
    schemes, left_out = schemes_by_granularity(scheme, tensor.shape)
    data: dict[str, Any] = {"scheme": str(scheme), "rows": [], "before": []}
    total, done = len(schemes) * len(subjects), 0
    for candidate in schemes:
        for name, subject in subjects:
            part = done / total, (done + 1) / total
            found = granularity_error(session.errors_of(task, subject, candidate, *part))
            done += 1
            row = {
                "scheme": str(candidate),
                "granularity": found.granularity,
                "scales": found.scales,
                "overhead_bits": found.overhead_bits,
                "bits_per_parameter": found.report.bits_per_parameter,
                "mse": found.report.mse,
                "relative_mse": found.report.relative_mse,
                "sqnr_db": found.report.sqnr_db,
                "gaussian_sqnr_db": found.report.gaussian_sqnr_db,
            }
            data[name].append(row)
            task.progress(done / total, {"name": name, "row": row})
    data["left_out"] = [[left.granularity, left.reason] for left in left_out]
    return Result(data)


def decomposition(session: Session, task: Task) -> Result:
    """LLM.int8(): what keeping the columns of large elements in 16 bits costs and brings, for
    a ladder of thresholds. Of the scheme, where it can be decomposed, else of int8 per row."""
    tensor, scheme = session.tensor_of(task), session.scheme_of(task)
    why = ""
    try:
        base = replace(scheme, outlier_threshold=USUAL_THRESHOLD)
    except UsageError as error:
        base, why = Scheme.parse(DECOMPOSED), str(error)
    columns = column_statistics(tensor, **watched(task, 0.0, 0.05))
    thresholds = set(threshold_ladder(columns))
    if thresholds and scheme.outlier_threshold is not None:
        thresholds.add(scheme.outlier_threshold)
    if thresholds and min(thresholds) < USUAL_THRESHOLD < max(thresholds):
        thresholds.add(USUAL_THRESHOLD)
    swept = decomposition_sweep(
        tensor, base, sorted(thresholds, reverse=True), **watched(task, 0.05, 1.0)
    )
    points = [
        {
            **dataclasses.asdict(point),
            "scheme": str(replace(base, outlier_threshold=point.threshold)),
        }
        for point in swept
    ]
    return Result(
        {
            "scheme": str(replace(base, outlier_threshold=None)),
            "why": why,
            "column_total": int(columns.absmax.size),
            "points": points,
        }
    )


def _magnitudes(columns: ColumnStatistics) -> list[list[Any]]:
    return [
        [c.column, c.absmax, c.rms, _finite(c.absmax_ratio), _finite(c.rms_ratio)]
        for c in columns.largest(COLUMNS_SENT)
    ]


def _shares(found: Attribution) -> list[list[Any]]:
    shares = found.own_shares
    return [[column, float(shares[column])] for column in found.most_error(COLUMNS_SENT)]


def _kept(kept: Kept, absmax_ratio: float) -> dict[str, Any]:
    return {
        "absmax_ratio": _finite(absmax_ratio),
        "columns": list(kept.columns),
        "own_share": kept.own_share,
        "caused_share": kept.caused_share,
        "sqnr_db": kept.sqnr_db,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


OPERATIONS = {
    "outliers": (outliers, "view"),
    "attribution": (attribution, "view"),
    "granularities": (granularities, "view"),
    "decomposition": (decomposition, "view"),
}
