"""The peaks of a plan alone, from the layers that were built and how often each stands for more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.workspaces import cublas_workspace
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.replay.curve import Peaks, read_peaks
from qtui_core.memory.replay.folding import Fold
from qtui_core.memory.replay.record import ALLOCATE, PHASE, Component, Event, Phase
from qtui_core.memory.replay.stretching import peak_levels
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.collectives import record_on_one_gpu
from qtui_core.memory.step.on_device import plan_as_run, with_workspaces
from qtui_core.memory.step.run import record_repeated, record_step

#: Phases in which nothing is multiplied yet.
_BEFORE_STEPS: Final = frozenset((Phase.LOAD.value, Phase.PREPARE.value))


def estimate_peaks(shape: ModelShape, plan: RunPlan, device: Device | None = None) -> Peaks:
    """The most alive in each phase, and no more: what plans are compared by, in a tenth of the
    time. Nothing of `plan` is open.

    Raises UsageError for a plan that cannot be on this model.
    """
    plan = plan_as_run(shape, plan, device)
    shape = shape.plain
    if plan.loop == "script":  # whose first step is like no other
        recording = record_on_one_gpu(shape, plan, record_step)
        return read_peaks(with_workspaces(recording.events, plan, device))
    levels: Iterable[tuple[str, int]]
    if plan.gpus > 1:  # whose shards are cut after the layers are copied
        levels = read_peaks(record_on_one_gpu(shape, plan, record_step).events).by_phase.items()
    else:
        levels = record_repeated(shape, plan, _peak_levels)
    workspaces = cublas_workspace(plan.torch, device, trains=plan.trains).bytes
    found: dict[str, int] = {}
    for phase, live in levels:
        held = 0 if phase in _BEFORE_STEPS else workspaces
        found[phase] = max(live + held, found.get(phase, 0))
    return Peaks(found)


def _peak_levels(events: Sequence[Event], folds: Sequence[Fold]) -> tuple[tuple[str, int], ...]:
    """peak_levels of a step that begins with the states of the optimizer: these are made after the
    first batch, and do not count as what the preparation takes."""
    first = next((i for i, e in enumerate(events) if e[0] == PHASE and e[1] == Phase.FORWARD), 0)
    batches = [
        i
        for i, event in enumerate(events[:first])
        if event[0] == ALLOCATE and event[3].component is Component.INPUTS
    ]
    if batches:
        events = [*events[: batches[-1] + 1], (PHASE, Phase.BETWEEN), *events[batches[-1] + 1 :]]
    return tuple(peak_levels(events, folds))
