"""The operations of the estimator: a plan's memory on a model, what is said about it, what fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from qtui.engine.answers.tensors import Devices
from qtui.engine.estimator.answers import (
    Answer,
    Assessment,
    CaseFigures,
    MapCell,
    ModelFacts,
    Traced,
)
from qtui.engine.estimator.requests import (
    AssessmentRequest,
    FitMapRequest,
    PlanRequest,
    SubjectRequest,
)
from qtui.engine.estimator.subjects import Estimates, Question, device_of, question_of
from qtui.engine.task import OperationTable, Task, run_cancellable
from qtui_core.codec import printed
from qtui_core.errors import UsageError
from qtui_core.memory.advice.capacity import Verdict, fit_on
from qtui_core.memory.advice.cases import CASES
from qtui_core.memory.advice.claims import figures_of
from qtui_core.memory.advice.conclude import conclude_memory
from qtui_core.memory.advice.report import report_of
from qtui_core.memory.devices.outside_torch import outside_torch
from qtui_core.memory.estimate import Estimate, PhaseBytes, estimate, estimate_peaks
from qtui_core.memory.plan.refusals import not_built_in
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for
from qtui_core.memory.replay.curve import Curve, Peaks
from qtui_core.memory.replay.groups import StackedCurve, stacked
from qtui_core.memory.replay.quick_curve import quick_curve
from qtui_core.memory.shape.modules import parameter_count
from qtui_core.telemetry.device import read_devices


def open_subject(estimates: Estimates, task: Task[SubjectRequest]) -> ModelFacts:
    """What is known of a model before any plan."""
    if not task.asked.case:
        estimates.forget(task.asked.model or "")
    subject = estimates.subject(task.asked)
    shape = subject.shape
    return ModelFacts(
        id=subject.model.name,
        location=subject.model.location,
        architecture=subject.model.architecture,
        parameters=None if shape is None else parameter_count(shape),
        layers=None if shape is None else len(shape.encoder) + len(shape.layers),
        dtype=None if shape is None else shape.dtype,
        packed_as=None if shape is None else shape.packed_as,
        max_positions=None if shape is None else shape.max_positions,
        quantized=subject.model.quantized,
        notes=() if shape is None else tuple(shape.notes),
        unknown=subject.why,
        traceable=bool(subject.model.config.get("model_type")),
    )


def first(estimates: Estimates, task: Task[PlanRequest]) -> Answer:
    """The first answer, fast enough for a knob that is being turned: the curve of tensor bytes,
    without the allocator."""
    question = question_of(estimates, task.asked)
    drawn = quick_curve(question.shape, question.plan, question.device)
    return Answer(
        stage="first",
        origin="tape",
        plan=drawn.plan,
        resident_bytes=drawn.curve.totals[-1],
        peak_live_bytes=drawn.peaks.bytes,
        peak_allocated_bytes=drawn.peaks.bytes,
        peak_reserved_bytes=None,
        process_bytes=drawn.process_bytes,
        uncertainty_bytes=0,
        peak_phase=drawn.peaks.phase,
        peak_operation="",
        components=(),
        beyond=(),
        phases=tuple(
            PhaseBytes(name, most, most, "") for name, most in drawn.peaks.by_phase.items()
        ),
        fit=None,
        curve=_stacked(drawn.curve),
    )


def full(estimates: Estimates, task: Task[PlanRequest]) -> Answer:
    """The whole estimate."""
    question = question_of(estimates, task.asked)
    found = run_cancellable(task, lambda: estimates.full(question))
    drawn = quick_curve(question.shape, question.plan, question.device)
    return _answer(found, drawn.curve)


def trace(estimates: Estimates, task: Task[AssessmentRequest]) -> Traced:
    """The same from a trace of the classes of transformers, and what is said about it."""
    from qtui.engine.estimator.asked_trace import traced_estimate

    question = question_of(estimates, task.asked)
    subject = question.subject
    found = traced_estimate(
        subject.model.config, subject.shape, question.asked, question.device, task.check
    )
    return Traced(_answer(found, found.curve), _around(question, found, task))


def around(estimates: Estimates, task: Task[AssessmentRequest]) -> Assessment:
    """What would save memory, which devices the plan fits, and what to do if it fits none."""
    question = question_of(estimates, task.asked)
    found = run_cancellable(task, lambda: estimates.full(question))
    return _around(question, found, task)


def _around(question: Question, found: Estimate, task: Task[AssessmentRequest]) -> Assessment:
    subject = question.subject

    @cache
    def peaks(changed: RunPlan) -> Peaks:
        task.check()
        return estimate_peaks(question.shape, changed, found.device)

    here = map(device_of, task.asked.live)
    report = report_of(
        subject.model,
        found,
        None if subject.shape is None or not_built_in(subject.shape, found.plan) else peaks,
        here=[device for device in here if device is not None],
        asked=question.asked,
        wanted=None if subject.shape is None else question.plan,
    )
    return Assessment(
        advice=report.advice,
        fits=report.fits,
        cures=report.cures,
        sentence=conclude_memory(report, by_group=True),
        notes=report.notes,
        report=printed(report),
        weighed=report.weighed,
    )


def fit_map(estimates: Estimates, task: Task[FitMapRequest]) -> None:
    """Which batches and sequences (both ascending) fit a device. First the peaks are reported cell
    by cell, then verdicts from full estimates. Only cells along the boundary are estimated, because
    more tokens never need less memory."""
    question = question_of(estimates, task.asked)
    shape, plan, device = question.shape, question.asked, question.device
    batches, sequences = task.asked.batches, task.asked.sequences
    needs: dict[tuple[int, int], int] = {}
    peaks: dict[tuple[int, int], int | None] = {}

    def cell(column: int, row: int) -> RunPlan:
        changes: dict[str, Any] = {"batch": batches[row], "sequence": sequences[column]}
        return resolve_for(shape, dataclasses.replace(plan, **changes))

    def tell(column: int, row: int, verdict: Verdict | None = None) -> None:
        peak = peaks[column, row]
        task.progress(0.0, MapCell(batches[row], sequences[column], peak, verdict))

    for row in range(len(batches)):
        for column in range(len(sequences)):
            task.check()
            try:
                peak = estimate_peaks(shape, cell(column, row), device).bytes
                peaks[column, row] = peak
                needs[column, row] = peak + outside_torch(device, plan.groups).bytes
            except UsageError:
                peaks[column, row] = None
            tell(column, row)
    if device is None:
        return
    room = device.capacity_bytes

    @cache
    def verdict(column: int, row: int) -> str:
        task.check()
        if needs[column, row] > room:
            return "no"  # the tensors alone are too large
        found = run_cancellable(task, lambda: estimate(shape, cell(column, row), device))
        return fit_on(found, device).verdict

    fitting = tight = len(batches)
    for column in range(len(sequences)):
        rows = [row for row in range(len(batches)) if (column, row) in needs]
        of_column = partial(verdict, column)
        fitting = _edge(rows[:fitting], ("fits",), of_column)
        tight = _edge(rows[:tight], ("fits", "tight"), of_column)
        for at, row in enumerate(rows):
            tell(column, row, "fits" if at < fitting else "tight" if at < tight else "no")


def _edge(rows: list[int], wanted: tuple[str, ...], verdict: Callable[[int], str]) -> int:
    """How many rows from the first on have a wanted verdict, found by bisection."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if verdict(rows[middle]) in wanted:
            low = middle + 1
        else:
            high = middle
    return low


def devices(estimates: Estimates, task: Task[object]) -> Devices:
    """The GPUs of this machine."""
    return Devices(read_devices())


def cases(estimates: Estimates, task: Task[object]) -> None:
    """Estimates the worked cases; each is reported as progress."""
    for case in CASES:
        task.check()
        task.progress(0.0, CaseFigures(case.key, figures_of(case)))


def _answer(found: Estimate, curve: Curve) -> Answer:
    return Answer(
        stage="full",
        origin=found.origin,
        plan=found.plan,
        resident_bytes=found.resident_bytes,
        peak_live_bytes=found.peak_live_bytes,
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=found.peak_reserved_bytes,
        process_bytes=found.process_bytes,
        uncertainty_bytes=found.uncertainty_bytes,
        peak_phase=found.peak_phase,
        peak_operation=found.peak_operation,
        components=found.components,
        beyond=found.beyond,
        phases=found.phases,
        fit=None if found.device is None else fit_on(found, found.device),
        curve=_stacked(curve),
    )


def _stacked(curve: Curve) -> StackedCurve:
    components = [component.value for component in curve.components]
    return stacked(curve.positions, components, curve.bytes, curve.spans)


#: Lanes: "quick" for what a key waits for, "view" for the full answer after it, "background" for
#: what may take long.
OPERATIONS: OperationTable = {
    "open": (open_subject, "quick", SubjectRequest),
    "first": (first, "quick", PlanRequest),
    "devices": (devices, "quick", None),
    "full": (full, "view", PlanRequest),
    "around": (around, "view", AssessmentRequest),
    "map": (fit_map, "background", FitMapRequest),
    "cases": (cases, "background", None),
    "trace": (trace, "trace", AssessmentRequest),
}
