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
from qtui_core.memory.advice.cases import CASES, figures_of
from qtui_core.memory.advice.fit import Verdict, fit_on
from qtui_core.memory.advice.report import conclude_memory, report_of
from qtui_core.memory.devices.device import outside_torch
from qtui_core.memory.estimate import Estimate, estimate, estimate_peaks, quick_estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for, stored_of
from qtui_core.memory.replay.timeline import Peaks, stacked
from qtui_core.memory.shape.model_shape import parameter_count
from qtui_core.telemetry.readings import read_devices


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
        parameters=parameter_count(shape),
        layers=len(shape.layers),
        stored=stored_of(shape),
        learned_positions=shape.learned_positions,
        quantized=bool(subject.model.quantization) and shape.packing is None,
        notes=shape.notes,
        traceable=bool(subject.model.config.get("model_type")),
        missing_weights=subject.missing_weights,
        random_weights=subject.random_weights,
    )


def first(estimates: Estimates, task: Task[PlanRequest]) -> Answer:
    """The first answer, fast enough for a knob that is being turned: the curve of tensor bytes,
    without the allocator."""
    question = question_of(estimates, task.asked)
    found = quick_estimate(question.shape, question.plan, question.device)
    return Answer(stage="first", **_figures(found))


def full(estimates: Estimates, task: Task[PlanRequest]) -> Answer:
    """The whole estimate."""
    question = question_of(estimates, task.asked)
    found = run_cancellable(task, lambda: estimates.full(question))
    return _answer(found)


def trace(estimates: Estimates, task: Task[AssessmentRequest]) -> Traced:
    """The same from a trace of the classes of transformers, and what is said about it."""
    from qtui.engine.estimator.asked_trace import traced_estimate

    question = question_of(estimates, task.asked)
    found = traced_estimate(
        question.subject.model, question.shape, question.asked, question.device,
        lambda _: task.check(),
    )  # fmt: skip
    return Traced(_answer(found), _around(question, found, task))


def around(estimates: Estimates, task: Task[AssessmentRequest]) -> Assessment:
    """What would save memory, which devices the plan fits, and what to do if it fits none."""
    question = question_of(estimates, task.asked)
    found = run_cancellable(task, lambda: estimates.full(question))
    return _around(question, found, task)


def _around(question: Question, found: Estimate, task: Task[AssessmentRequest]) -> Assessment:
    known = found.shape is not None

    @cache
    def peaks(changed: RunPlan) -> Peaks:
        task.check()
        return estimate_peaks(question.shape, changed, found.device)

    here = map(device_of, task.asked.live)
    report = report_of(
        question.subject.model,
        found,
        peaks if known else None,
        here=[device for device in here if device is not None],
        asked=question.asked,
        wanted=question.plan if known else None,
        why=question.shape.why,
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


def _answer(found: Estimate) -> Answer:
    return Answer(
        stage="full",
        peak_reserved_bytes=found.peak_reserved_bytes,
        uncertainty_bytes=found.uncertainty_bytes,
        peak_operation=found.peak_operation,
        components=found.components,
        beyond=found.beyond,
        fit=None if found.device is None else fit_on(found, found.device),
        **_figures(found),
    )


def _figures(found: Estimate) -> dict[str, Any]:
    """What a first answer has, too."""
    curve = found.curve
    components = [component.value for component in curve.components]
    return {
        "origin": found.origin,
        "plan": found.plan,
        "resident_bytes": found.resident_bytes,
        "peak_live_bytes": found.peak_live_bytes,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "process_bytes": found.process_bytes,
        "peak_phase": found.peak_phase,
        "phases": found.phases,
        "curve": stacked(curve.positions, components, curve.bytes, curve.spans),
    }


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
