"""Turns an estimate into the part that a recording keeps for comparison with measurements; and the
warning before a run that does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from qtui_core.live.snapshot import Predicted, PredictedCurve, PredictedPhase
from qtui_core.memory.advice.fit import Advice, fit_on, largest
from qtui_core.memory.devices.device import Device
from qtui_core.memory.estimate import CONTEXT, PAGED, Estimate
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import Curve, Span, Timeline, peaks_by_phase
from qtui_core.quantities import format_bytes


def predict(
    estimate: Estimate,
    *,
    tensors: bool = False,
    advice: Sequence[Advice] = (),
    warning: str = "",
    memory: Mapping[str, Any] | None = None,
) -> Predicted:
    """What a run is compared with: the levels of its estimate, and what each phase holds.

    `tensors` is for a run on a CPU, where bytes of live tensors are counted. There are no cuBLAS
    workspaces, blocks, segments or context there, so all levels are those of live tensors without
    workspaces. `memory` is the object that `qtui memory --json` prints.
    """
    timeline, beyond = estimate.timeline, {term.name: term.bytes for term in estimate.beyond}
    workspaces = timeline.held(len(timeline.events)).get(Component.WORKSPACES, 0)
    most = {phase.name: phase.allocated_bytes for phase in estimate.phases}
    resident, peak = estimate.resident_allocated_bytes, estimate.peak_allocated_bytes
    process, reserved = estimate.process_bytes, estimate.peak_reserved_bytes
    peak_phase = estimate.peak_phase
    kept = set(Component)
    if tensors:
        kept -= {Component.WORKSPACES}
        live = timeline.bytes_of(kept)
        most = {name: most for name, (most, _) in peaks_by_phase(timeline.spans, live).items()}
        peak_phase = max(most, key=lambda name: most[name], default="")
        resident = estimate.resident_bytes - workspaces
        peak = process = most.get(peak_phase, 0)
        reserved, workspaces, beyond = None, 0, {}
    held = _held(timeline, kept)
    return Predicted(
        resident_bytes=resident,
        peak_allocated_bytes=peak,
        peak_phase=peak_phase,
        peak_reserved_bytes=reserved,
        process_bytes=process,
        context_bytes=beyond.get(CONTEXT, 0),
        workspace_bytes=workspaces,
        phases=tuple(PredictedPhase(name, nbytes, *held[name]) for name, nbytes in most.items()),
        curve=_curve(estimate.curve, kept),
        advice=tuple((entry.change, entry.saves_bytes) for entry in advice),
        warning=warning,
        memory=memory or {},
        paged_bytes=beyond.get(PAGED, 0),
        counted="tensors" if tensors else "allocator",
    )


def warning_of(estimate: Estimate, device: Device, used_bytes: int = 0) -> str:
    """The sentences that warn of a run that will not or may not fit a device, with the largest
    batch that would fit; empty if it fits. `used_bytes` are those of other processes on the
    device."""
    if used_bytes:
        device = replace(device, allocatable=max(0, device.capacity_bytes - used_bytes))
    fit = fit_on(estimate, device)
    if fit.verdict == "fits":
        return ""
    need, have = format_bytes(estimate.process_bytes), format_bytes(fit.capacity_bytes)
    more = ""
    if fit.verdict == "no":
        said = f"This run will not fit: it needs {need}"
    else:
        give = format_bytes(estimate.uncertainty_bytes)
        said = f"This run is tight: it needs {need}, give or take {give}"
    if estimate.shape is not None:
        best = largest(estimate.shape, estimate.plan, "batch", device).value
        if best is None:
            more = (
                " Not even --batch 1 does; `qtui memory` says which changes of the plan save most."
            )
        elif best != estimate.plan.batch:  # else no larger batch fits
            more = f" The largest batch that fits is {best:,}: --batch {best}."
    others = " that no other process uses" if used_bytes else ""
    return f"{said}, and {device.name} has {have}{others}.{more}"


def _held(
    timeline: Timeline, kept: Set[Component]
) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """For each phase: what is held at the end of its last span, and at its peak in the last step. A
    step may go through a phase several times."""
    spans = [span for span in timeline.spans if span.stop > span.start]
    ends = [number for number, span in enumerate(spans, 1) if span.name == Phase.BETWEEN]
    begun = ends[-2] if len(ends) > 1 else 0
    events = {span.name: (span.stop - 1, _fullest(timeline, span)) for span in spans}
    for span in spans[begun:]:
        end, peak = events[span.name]
        fullest = _fullest(timeline, span)
        if timeline.live[fullest] > timeline.live[peak]:
            events[span.name] = end, fullest

    def alive(event: int) -> dict[str, int]:
        return {c.value: n for c, n in timeline.held(event).items() if c in kept}

    return {name: (alive(end), alive(peak)) for name, (end, peak) in events.items()}


def _fullest(timeline: Timeline, span: Span) -> int:
    part = timeline.live[span.start : span.stop]
    return span.start + part.index(max(part))


def _curve(curve: Curve, kept: Set[Component]) -> PredictedCurve:
    rows = zip(curve.components, curve.bytes, strict=True)
    named = {component.value: row for component, row in rows if component in kept}
    spans = tuple((span.name, span.start, span.stop) for span in curve.spans)
    return PredictedCurve(curve.positions, tuple(named), tuple(named.values()), spans)
