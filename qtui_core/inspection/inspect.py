"""Reads a model's values and measures what each scheme does to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qtui_core.inspection.census import select_tensors, take_census
from qtui_core.inspection.conclude import conclude
from qtui_core.inspection.report import Inspection, SchemeTotal, TensorReport
from qtui_core.inspection.sample import LOCAL_LIMIT, REMOTE_LIMIT, RowSample, sample_rows
from qtui_core.models import ModelSource, TensorInfo, row_elements, rows_of
from qtui_core.models.arrays import RowReader
from qtui_core.models.tensors import Role
from qtui_core.quant import (
    ErrorReport,
    OutlierReport,
    PerModel,
    Scheme,
    find_outliers,
    measure,
    quantized_bytes,
    statistics,
)

SCALE_BYTES = 4
#: Reports how far an inspection is: elements done, elements in all, tensor at work.
Progress = Callable[[int, int, str], None]

FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})


def is_quantizable(info: TensorInfo) -> bool:
    """Whether schemes are applied to a tensor: plain floating-point values in two dimensions
    or more. Norms and biases stay as stored, as quantization libraries leave them, and so
    does what is quantized already."""
    return (
        info.readable
        and info.role is Role.VALUES
        and info.dtype in FLOATS
        and len(info.shape) >= 2
        and info.elements > 0
    )


def inspect_model(
    source: ModelSource,
    schemes: Sequence[Scheme],
    *,
    full: bool = False,
    pattern: str | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Statistics, outliers and the error of every scheme, tensor by tensor.

    Args:
        source: an open model.
        schemes: what to measure; totals come in the same order.
        full: read every element; else a bounded, evenly spread sample of rows.
        pattern: shell pattern of tensor names; None takes all.
        progress: called before each tensor and at the end.

    Memory is bounded by one sample or, with `full`, by the chunks `measure` works in.

    Raises:
        ModelError: rows could not be read.
        UsageError: no tensor matches `pattern`.
    """
    infos = select_tensors(source, pattern)
    limit = None if full else REMOTE_LIMIT if source.origin == "hub" else LOCAL_LIMIT
    absmax = None
    if any(isinstance(s.granularity, PerModel) for s in schemes):
        absmax = _model_absmax(source, infos, limit)
    total = sum(i.elements for i in infos)
    done = 0
    reports = []
    for info in infos:
        if progress:
            progress(done, total, info.name)
        reports.append(_inspect_tensor(source, info, schemes, limit, absmax))
        done += info.elements
    if progress:
        progress(total, total, "")
    tensors = tuple(reports)
    census = take_census(source)
    totals = tuple(_total(scheme, i, tensors) for i, scheme in enumerate(schemes))
    return Inspection(
        census=census,
        tensors=tensors,
        schemes=totals,
        measured=True,
        sample=_describe_sample(tensors, full),
        conclusion=conclude(census, tensors, totals),
    )


def _open_rows(
    source: ModelSource, info: TensorInfo, limit: int | None
) -> tuple[np.ndarray | RowReader, RowSample]:
    """What to measure, and which rows of the tensor those are."""
    sample = sample_rows(rows_of(info), row_elements(info), limit)
    reader = RowReader(source, info.name)
    if sample.is_whole and limit is None:
        return reader, sample
    parts = [reader.rows(start, stop) for start, stop in sample.strips]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)), sample


def _model_absmax(source: ModelSource, infos: Sequence[TensorInfo], limit: int | None) -> float:
    """The largest finite magnitude of the tensors a scheme would be applied to."""
    largest = 0.0
    for info in filter(is_quantizable, infos):
        rows, _ = _open_rows(source, info, limit)
        largest = max(largest, statistics(rows).absmax)
    return largest


def _inspect_tensor(
    source: ModelSource,
    info: TensorInfo,
    schemes: Sequence[Scheme],
    limit: int | None,
    absmax: float | None,
) -> TensorReport:
    if not info.readable or info.elements == 0:
        return TensorReport(info, sampled_parameters=0)
    rows, sample = _open_rows(source, info, limit)
    stats = statistics(rows)
    outliers = _in_tensor_rows(find_outliers(rows, stats), info, sample)
    errors: tuple[ErrorReport, ...] = ()
    if is_quantizable(info):
        errors = tuple(measure(rows, scheme, model_absmax=absmax) for scheme in schemes)
    return TensorReport(info, sample.count * row_elements(info), stats, outliers, errors)


def _in_tensor_rows(outliers: OutlierReport, info: TensorInfo, sample: RowSample) -> OutlierReport:
    """Outliers by row and column of the tensor. A vector is one row, as schemes see it."""
    if len(info.shape) < 2:
        top = (replace(o, row=0, column=sample.original_row(o.row)) for o in outliers.top)
        return replace(outliers, top=tuple(top), columns=())
    return replace(
        outliers, top=tuple(replace(o, row=sample.original_row(o.row)) for o in outliers.top)
    )


def _total(scheme: Scheme, index: int, tensors: Sequence[TensorReport]) -> SchemeTotal:
    # The one scale of a whole model belongs to no tensor.
    nbytes = SCALE_BYTES if isinstance(scheme.granularity, PerModel) else 0
    squared_error = signal = expected = 0.0
    worst, worst_sqnr = None, math.inf
    for tensor in tensors:
        info = tensor.info
        if not tensor.errors:
            nbytes += info.nbytes
            continue
        error = tensor.errors[index]
        shape = (rows_of(info), row_elements(info))
        nbytes += quantized_bytes(scheme, shape)
        power = _power(tensor)
        if error.relative_mse is None or power == 0.0:
            continue
        squared_error += error.relative_mse * power
        expected += (error.gaussian_relative_mse or 0.0) * power
        signal += power
        if error.sqnr_db is not None and error.sqnr_db < worst_sqnr:
            worst, worst_sqnr = info.name, error.sqnr_db
    parameters = sum(t.info.parameters for t in tensors)
    relative = squared_error / signal if signal else None
    return SchemeTotal(
        scheme=str(scheme),
        bits_per_parameter=8 * nbytes / parameters if parameters else 0.0,
        nbytes=nbytes,
        relative_mse=relative,
        sqnr_db=_decibels(relative),
        gaussian_sqnr_db=_decibels(expected / signal if signal else None),
        worst_tensor=worst,
    )


def _power(tensor: TensorReport) -> float:
    """The sum of squares of a whole tensor, as its statistics estimate it."""
    stats = tensor.statistics
    if stats is None or stats.std is None or stats.mean is None:
        return 0.0
    return (stats.std**2 + stats.mean**2) * tensor.info.elements


def _decibels(relative_mse: float | None) -> float | None:
    return -10.0 * math.log10(relative_mse) if relative_mse else None


def _describe_sample(tensors: Sequence[TensorReport], full: bool) -> str:
    read = sum(t.sampled_parameters for t in tensors)
    there = sum(t.info.elements for t in tensors)
    skipped = sum(1 for t in tensors if not t.info.readable)
    unread = f" {skipped} tensors of a dtype qtui does not read are listed only." if skipped else ""
    if read == there - sum(t.info.elements for t in tensors if not t.info.readable):
        return f"Every element was read: {read:,} of {there:,}.{unread}"
    cut = sum(1 for t in tensors if 0 < t.sampled_parameters < t.info.elements)
    return (
        f"A sample: {read:,} of {there:,} elements ({read / there:.1%}), whole rows spread evenly "
        f"over {cut} tensors too large to read in full; scales per tensor, column or model are "
        f"those of the sample.{unread}"
    )
