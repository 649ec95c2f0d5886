"""Turns an estimate into the part that a recording keeps for comparison with measurements; and the
warning before a run that does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qtui_core.live.header import Predicted, PredictedCurve, PredictedPhase
from qtui_core.memory.advice.fit import Advice, fit_on, largest
from qtui_core.memory.devices.device import Device
from qtui_core.memory.estimate import CONTEXT, PAGED, Estimate
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import Curve, Span, Timeline, peaks_by_phase
from qtui_core.quantities import format_bytes


def predict(
    found: Estimate,
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
    timeline = found.timeline
    most = _levels(found, tensors)
    peak_phase = found.peak_phase
    if tensors:
        peak_phase = max(most, key=lambda name: most[name], default="")
    peak = max(most.values(), default=0) if tensors else found.peak_allocated_bytes
    workspaces = timeline.held(len(timeline.events)).get(Component.WORKSPACES, 0)
    beyond = {term.name: term.bytes for term in found.beyond}
    held = _held(timeline, tensors)
    return Predicted(
        resident_bytes=(
            found.resident_bytes - workspaces if tensors else found.resident_allocated_bytes
        ),
        peak_allocated_bytes=peak,
        peak_phase=peak_phase,
        peak_reserved_bytes=None if tensors else found.peak_reserved_bytes,
        process_bytes=peak if tensors else found.process_bytes,
        context_bytes=0 if tensors else beyond.get(CONTEXT, 0),
        workspace_bytes=0 if tensors else workspaces,
        phases=tuple(PredictedPhase(name, nbytes, *held[name]) for name, nbytes in most.items()),
        curve=_curve(found.curve, tensors),
        advice=tuple((entry.change, entry.saves_bytes) for entry in advice),
        warning=warning,
        memory=memory or {},
        paged_bytes=0 if tensors else beyond.get(PAGED, 0),
        counted="tensors" if tensors else "allocator",
    )


def warning_of(found: Estimate, device: Device, used_bytes: int = 0) -> str:
    """The sentences that warn of a run that will not or may not fit a device, with the largest
    batch that would fit; empty if it fits. `used_bytes` are those of other processes on the
    device."""
    if used_bytes:
        device = replace(device, allocatable=max(0, device.capacity_bytes - used_bytes))
    fit = fit_on(found, device)
    if fit.verdict == "fits":
        return ""
    need, have = format_bytes(found.process_bytes), format_bytes(fit.capacity_bytes)
    has = f"{device.name} has {have}" + (" that no other process uses" if used_bytes else "")
    said = (
        f"This run will not fit: it needs {need}, and {has}."
        if fit.verdict == "no"
        else f"This run is tight: it needs {need}, give or take "
        f"{format_bytes(found.uncertainty_bytes)}, and {has}."
    )
    if found.shape is None:
        return said
    best = largest(found.shape, found.plan, "batch", device)
    if best.value is None:
        return (
            f"{said} Not even --batch 1 does; `qtui memory` says which changes of the plan "
            "save most."
        )
    if best.value == found.plan.batch:  # no larger batch fits either
        return said
    return f"{said} The largest batch that fits is {best.value:,}: --batch {best.value}."


def _levels(found: Estimate, tensors: bool) -> dict[str, int]:
    """The peak of each phase, in order of appearance."""
    if not tensors:
        return {phase.name: phase.allocated_bytes for phase in found.phases}
    timeline = found.timeline
    live = timeline.bytes_of(set(Component) - {Component.WORKSPACES})
    return {name: most for name, (most, _) in peaks_by_phase(timeline.spans, live).items()}


def _held(timeline: Timeline, tensors: bool) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
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
        held = timeline.held(event).items()
        return {c.value: n for c, n in held if not (tensors and c is Component.WORKSPACES)}

    return {name: (alive(end), alive(peak)) for name, (end, peak) in events.items()}


def _fullest(timeline: Timeline, span: Span) -> int:
    part = timeline.live[span.start : span.stop]
    return span.start + part.index(max(part))


def _curve(curve: Curve, tensors: bool) -> PredictedCurve:
    rows = [
        (component.value, row)
        for component, row in zip(curve.components, curve.bytes, strict=True)
        if not (tensors and component is Component.WORKSPACES)
    ]
    return PredictedCurve(
        positions=curve.positions,
        components=tuple(name for name, _ in rows),
        bytes=tuple(row for _, row in rows),
        spans=tuple((span.name, span.start, span.stop) for span in curve.spans),
    )
