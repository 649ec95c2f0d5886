"""What the estimator can be asked: a plan's memory on a model, what surrounds it, what fits."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from qtui.engine.abandoned import unless_given_up
from qtui.engine.estimator.subjects import Estimates, Subject, asked, device_of
from qtui.engine.protocol import Array
from qtui.engine.task import Result, Task
from qtui.report.memory.build import report_of
from qtui.report.memory.data import memory_data
from qtui.report.memory.words import conclude_memory
from qtui_core.errors import UsageError
from qtui_core.memory.advice.cases import CASES, figures_of
from qtui_core.memory.advice.fit import fit_on
from qtui_core.memory.devices.workspaces import outside_torch
from qtui_core.memory.estimate import Estimate, estimate
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.curve import Curve, Peaks
from qtui_core.memory.replay.peaks import estimate_peaks
from qtui_core.memory.replay.sketch import sketch
from qtui_core.telemetry.device import read_devices


def open_subject(estimates: Estimates, task: Task) -> Result:
    """What is known of a model before any plan."""
    if not task.params.get("case"):
        estimates.forget(task.text("model"))
    subject = estimates.subject(task.params)
    shape = subject.shape
    return Result(
        {
            "id": subject.name,
            "location": subject.location,
            "architecture": subject.architecture,
            "parameters": None if shape is None else shape.parameters,
            "layers": None if shape is None else len(shape.encoder) + len(shape.layers),
            "dtype": None if shape is None else shape.dtype,
            "packed_as": None if shape is None else shape.packed_as,
            "max_positions": None if shape is None else shape.max_positions,
            "quantized": subject.quantized,
            "notes": [] if shape is None else list(shape.notes),
            "unknown": subject.why,
            "traceable": bool(subject.config.get("model_type")),
        }
    )


def first(estimates: Estimates, task: Task) -> Result:
    """The curve of tensors: what a knob that is being turned is answered with."""
    subject, plan, device = asked(estimates, task)
    drawn = sketch(subject.known_shape(), plan, device)
    return _with_curve(
        drawn.curve,
        {
            "stage": "first",
            "origin": "tape",
            "plan": dataclasses.asdict(drawn.plan),
            "resident_bytes": drawn.curve.totals[-1],
            "peak_live_bytes": drawn.peaks.bytes,
            "peak_allocated_bytes": drawn.peaks.bytes,
            "peak_reserved_bytes": None,
            "process_bytes": drawn.process_bytes,
            "uncertainty_bytes": 0,
            "peak_phase": drawn.peaks.phase,
            "peak_operation": "",
            "components": [],
            "beyond": [],
            "phases": [
                {"name": name, "live_bytes": most, "allocated_bytes": most, "operation": ""}
                for name, most in drawn.peaks.by_phase.items()
            ],
            "fit": None,
        },
    )


def full(estimates: Estimates, task: Task) -> Result:
    """The whole estimate."""
    subject, plan, device = asked(estimates, task)
    found = unless_given_up(task, lambda: estimates.full(subject, plan, device))
    return _answer(found, sketch(subject.known_shape(), plan, device).curve)


def trace(estimates: Estimates, task: Task) -> Result:
    """The same from the classes of transformers, in a process of their own; "around" is what
    surrounds it."""
    from qtui.engine.estimator.asked_trace import traced_estimate

    subject, plan, device = asked(estimates, task)
    found = traced_estimate(subject.config, subject.shape, plan, device, task.check)
    answer = _answer(found, found.curve)
    surroundings = _around(subject, found, plan, task)
    return Result({**answer.data, "around": surroundings}, answer.arrays)


def around(estimates: Estimates, task: Task) -> Result:
    """What would save memory, what the plan fits, what to do when it does not."""
    subject, plan, device = asked(estimates, task)
    found = unless_given_up(task, lambda: estimates.full(subject, plan, device))
    return Result(_around(subject, found, plan, task))


def _around(subject: Subject, found: Estimate, plan: RunPlan, task: Task) -> dict[str, Any]:
    @cache
    def peaks(changed: RunPlan) -> Peaks:
        task.check()
        return estimate_peaks(subject.known_shape(), changed, found.device)

    here = [device_of(params) for params in task.params.get("live", ())]
    report = report_of(
        subject,
        found,
        None if subject.shape is None else peaks,
        here=[device for device in here if device is not None],
        asked=plan,
    )
    return {
        "sentence": conclude_memory(report, by_group=True),
        "advice": [
            {
                "change": line.change,
                "plan": dataclasses.asdict(line.plan),
                "saves_bytes": line.saves_bytes,
                "cost": line.cost,
                "peak_phase": line.peak_phase,
            }
            for line in report.advice
        ],
        "fits": [dataclasses.asdict(fit) for fit in report.fits],
        "cures": [dataclasses.asdict(cure) for cure in report.cures],
        "notes": list(report.notes),
        "weighed": report.weighed,
        "report": memory_data(report),
    }


def fit_map(estimates: Estimates, task: Task) -> Result:
    """Which batches and sequences (both rising) fit a device. Peaks come first, cell by cell, and
    then verdicts from whole estimates, but only along the edges of what fits: more tokens never
    need less."""
    subject, plan, device = asked(estimates, task)
    shape = subject.known_shape()
    batches, sequences = task.params["batches"], task.params["sequences"]
    needs: dict[tuple[int, int], int] = {}

    def cell(column: int, row: int) -> RunPlan:
        changes: dict[str, Any] = {"batch": batches[row], "sequence": sequences[column]}
        return dataclasses.replace(plan, **changes)

    def tell(column: int, row: int, **known: Any) -> None:
        task.progress(0.0, {"batch": batches[row], "sequence": sequences[column], **known})

    for row in range(len(batches)):
        for column in range(len(sequences)):
            task.check()
            try:
                peak = estimate_peaks(shape, cell(column, row), device).bytes
            except UsageError:
                tell(column, row, peak_live_bytes=None)
                continue
            needs[column, row] = peak + outside_torch(device, plan.groups).bytes
            tell(column, row, peak_live_bytes=peak)
    if device is None:
        return Result({})
    room = device.capacity_bytes

    @cache
    def verdict(column: int, row: int) -> str:
        task.check()
        if needs[column, row] > room:
            return "no"  # without what the allocator keeps
        found = unless_given_up(task, lambda: estimate(shape, cell(column, row), device))
        return fit_on(found, device).verdict

    fitting = tight = len(batches)
    for column in range(len(sequences)):
        rows = [row for row in range(len(batches)) if (column, row) in needs]
        of_column = partial(verdict, column)
        fitting = _edge(rows[:fitting], ("fits",), of_column)
        tight = _edge(rows[:tight], ("fits", "tight"), of_column)
        for at, row in enumerate(rows):
            word = "fits" if at < fitting else "tight" if at < tight else "no"
            tell(column, row, verdict=word)
    return Result({})


def _edge(rows: list[int], wanted: tuple[str, ...], verdict: Callable[[int], str]) -> int:
    """How many of the first rows have a wanted verdict, by bisection."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if verdict(rows[middle]) in wanted:
            low = middle + 1
        else:
            high = middle
    return low


def devices(estimates: Estimates, task: Task) -> Result:
    """The GPUs of this machine."""
    return Result({"devices": [dataclasses.asdict(device) for device in read_devices()]})


def cases(estimates: Estimates, task: Task) -> Result:
    """The worked cases with our figures, one after the other."""
    for case in CASES:
        task.check()
        figures = [dataclasses.asdict(figure) for figure in figures_of(case)]
        task.progress(0.0, {"case": case.key, "figures": figures})
    return Result({})


def _answer(found: Estimate, curve: Curve) -> Result:
    fit = None if found.device is None else dataclasses.asdict(fit_on(found, found.device))
    return _with_curve(
        curve,
        {
            "stage": "full",
            "origin": found.origin,
            "plan": dataclasses.asdict(found.plan),
            "resident_bytes": found.resident_bytes,
            "peak_live_bytes": found.peak_live_bytes,
            "peak_allocated_bytes": found.peak_allocated_bytes,
            "peak_reserved_bytes": found.peak_reserved_bytes,
            "process_bytes": found.process_bytes,
            "uncertainty_bytes": found.uncertainty_bytes,
            "peak_phase": found.peak_phase,
            "peak_operation": found.peak_operation,
            "components": [_term(term) for term in found.components],
            "beyond": [_term(term) for term in found.beyond],
            "phases": [dataclasses.asdict(phase) for phase in found.phases],
            "fit": fit,
        },
    )


def _with_curve(curve: Curve, data: dict[str, Any]) -> Result:
    flat = array("q", (nbytes for row in curve.bytes for nbytes in row))
    return Result(
        {
            **data,
            "curve": {
                "positions": list(curve.positions),
                "components": [component.value for component in curve.components],
                "bands": [[span.name, span.start, span.stop] for span in curve.spans],
            },
        },
        {"curve": Array("<i8", (len(flat),), flat.tobytes())},
    )


def _term(term: Term) -> dict[str, Any]:
    return {
        "name": term.name,
        "bytes": term.bytes,
        "formula": term.formula,
        "basis": term.basis,
    }


#: Lanes: "quick" is what a key waits for, "view" what follows it, "background" what may take long.
OPERATIONS = {
    "open": (open_subject, "quick"),
    "first": (first, "quick"),
    "devices": (devices, "quick"),
    "full": (full, "view"),
    "around": (around, "view"),
    "map": (fit_map, "background"),
    "cases": (cases, "background"),
    "trace": (trace, "trace"),
}
