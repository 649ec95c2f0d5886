"""Reads a model's values and measures what each scheme does to them, and to the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from qtui_core.errors import UsageError
from qtui_core.inspection.census import select_tensors, take_census
from qtui_core.inspection.completeness import check_completeness, faults
from qtui_core.inspection.conclude import conclude
from qtui_core.inspection.report import Inspection, SchemeTotal, TensorReport
from qtui_core.inspection.sample import Rows, RowSample, limit_of, read_ahead
from qtui_core.inspection.sentences import describe_sample
from qtui_core.job import IDLE, Job
from qtui_core.models import ModelSource, TensorInfo, row_elements
from qtui_core.models.tensors import Role
from qtui_core.quant import (
    ErrorReport,
    OutlierReport,
    PerModel,
    Scheme,
    bits_per_parameter,
    find_outliers,
    quantized_bytes,
)
from qtui_core.quant.measure import ErrorScan, decibels
from qtui_core.quant.plan import scan
from qtui_core.quant.statistics import StatisticsScan
from qtui_core.quantities import plural

FLOATS = frozenset(
    {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
)
#: Largest values kept of each tensor. As many as a report lists, so its list of the largest in all
#: tensors is complete.
TOP_OUTLIERS = 20


def is_quantizable(info: TensorInfo) -> bool:
    """Whether schemes are applied to a tensor: plain floating-point values in two dimensions or
    more. Norms and biases stay as stored, as quantization libraries leave them, and so do tensors
    that are quantized already."""
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
    job: Job = IDLE,
) -> Inspection:
    """Statistics, outliers and the error of every scheme, tensor by tensor.

    Args:
        source: an open model.
        schemes: what to measure; totals come in the same order.
        full: read every element; otherwise a bounded, evenly spread sample of rows.
        pattern: shell pattern of tensor names; None takes all.

    Memory is bounded by one sample or, with `full`, by the chunks of `measure`.

    Raises:
        ModelError: rows could not be read.
        UsageError: no tensor matches `pattern`, or a scheme has one scale for the whole model.
    """
    refuse_model_scale(schemes)
    infos = select_tensors(source, pattern)
    readable = [i for i in infos if i.readable and i.elements]
    limit = limit_of(source.origin, readable, full=full)
    reports = {info.name: TensorReport(info, sampled_parameters=0) for info in infos}
    parts = job.parts([info.elements for info in readable])
    for (info, rows, sample), part in zip(read_ahead(source, readable, limit), parts, strict=True):
        named = part.part(0.0, 1.0, info.name)
        reports[info.name] = _inspect_tensor(info, rows, sample, schemes, named)
    tensors, census = tuple(reports.values()), take_census(source)
    totals = tuple(total_of(scheme, i, tensors) for i, scheme in enumerate(schemes))
    complete = check_completeness(source)
    wrong = faults(complete, census.model)
    return Inspection(
        census=census,
        tensors=tensors,
        schemes=totals,
        measured=True,
        sample=_describe_sample(tensors),
        conclusion=f"{wrong}{'; ' * bool(wrong)}{conclude(census, tensors, totals)}",
        completeness=complete,
    )


def _inspect_tensor(
    info: TensorInfo,
    rows: Rows,
    sample: RowSample,
    schemes: Sequence[Scheme],
    job: Job,
) -> TensorReport:
    values = StatisticsScan()
    errors = [ErrorScan(scheme) for scheme in schemes] if is_quantizable(info) else []
    scanned = (1 + len(errors)) / (2 + len(errors))  # of the work; the outliers are a second pass
    job.at(0.0)
    scan(rows, [values, *errors], job=job.part(0.0, scanned))
    stats = values.result()
    outliers = find_outliers(rows, stats, top=TOP_OUTLIERS, job=job.part(scanned, 1.0))
    return TensorReport(
        info,
        sampled_parameters=sample.count * row_elements(info),
        statistics=stats,
        outliers=_in_tensor_rows(outliers, info, sample),
        errors=tuple(_of_tensor(error.result(), info, sample) for error in errors),
    )


def _of_tensor(report: ErrorReport, info: TensorInfo, sample: RowSample) -> ErrorReport:
    """A report on a sample, turned into one on the tensor: storage is that of the whole tensor,
    whose scales are shared by more elements, and positions are rows of the tensor."""
    if report.shape == info.matrix:  # every row was read
        return report
    place = report.max_abs_error_index
    return replace(
        report,
        shape=info.matrix,
        bits_per_parameter=bits_per_parameter(report.scheme, info.matrix, report.outlier_columns),
        bytes=quantized_bytes(report.scheme, info.matrix, report.outlier_columns),
        max_abs_error_index=place and (sample.original_row(place[0]), place[1]),
    )


def _in_tensor_rows(outliers: OutlierReport, info: TensorInfo, sample: RowSample) -> OutlierReport:
    """Outliers by row and column of the tensor. A vector counts as one row, as in schemes."""
    if len(info.shape) < 2:
        top = [replace(o, row=0, column=sample.original_row(o.row)) for o in outliers.top]
        return replace(outliers, top=tuple(top), columns=())
    top = [replace(o, row=sample.original_row(o.row)) for o in outliers.top]
    return replace(outliers, top=tuple(top))


def _describe_sample(tensors: Sequence[TensorReport]) -> str:
    read = sum(t.sampled_parameters for t in tensors)
    said = describe_sample(read, sum(t.info.elements for t in tensors if t.info.readable))
    if unread := [t for t in tensors if not t.info.readable]:
        names = ", ".join(sorted({t.info.dtype for t in unread}))
        said += f" {plural(len(unread), 'tensor')} of dtype {names}: listed, not read."
    return said


def refuse_model_scale(schemes: Iterable[Scheme]) -> None:
    """Raises UsageError for a scheme whose scale belongs to the whole model, which has to be read
    for it before any tensor is."""
    for scheme in schemes:
        if isinstance(scheme.granularity, PerModel):
            raise UsageError(
                f"{scheme} shares one scale among all tensors, which only the app's Quantize panel "
                f"measures: write {scheme.format}:tensor."
            )


def total_of(scheme: Scheme, index: int, tensors: Sequence[TensorReport]) -> SchemeTotal:
    """The total of `scheme`, which is number `index` among the errors of each tensor."""
    errors = [tensor.errors[index] for tensor in tensors if tensor.errors]
    weighed = [
        (tensor.errors[index], tensor.errors[index].relative_mse or 0.0, tensor.energy, tensor)
        for tensor in tensors
        if tensor.errors and tensor.errors[index].relative_mse is not None and tensor.energy
    ]
    signal = sum(power for _, _, power, _ in weighed)
    relative = sum(mse * power for _, mse, power, _ in weighed) / signal if signal else None
    expected = [(e.gaussian_relative_mse, power) for e, _, power, _ in weighed]
    gaussian = None  # an expectation for only some tensors says nothing about the model
    if signal and all(mse is not None for mse, _ in expected):
        gaussian = sum((mse or 0.0) * power for mse, power in expected) / signal
    sqnr = {t.info.name: e.sqnr_db for e, _, _, t in weighed if e.sqnr_db is not None}
    nbytes = sum(t.info.nbytes for t in tensors if not t.errors) + sum(e.bytes for e in errors)
    parameters = sum(t.info.parameters for t in tensors)
    return SchemeTotal(
        scheme=str(scheme),
        bits_per_parameter=8 * nbytes / parameters if parameters else 0.0,
        nbytes=nbytes,
        relative_mse=relative,
        sqnr_db=decibels(relative),
        gaussian_sqnr_db=decibels(gaussian),
        worst_tensor=min(sqnr, key=lambda name: sqnr[name], default=None),
        saturated=sum(error.saturated for error in errors),
    )
