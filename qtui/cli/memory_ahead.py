"""Peaks of changed plans, worked out in a process beside this one while it estimates the plan."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from qtui_core.errors import UsageError
from qtui_core.memory.advice.changes import changed_plans
from qtui_core.memory.devices.device import Device
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.on_device import plan_on

Weighing = Callable[[RunPlan], Peaks]


def weighed_beside(
    weighing: Weighing, shape: ModelShape, plan: RunPlan, device: Device | None
) -> Weighing:
    """`weighing`, of which a fork of this process already works out what a report will ask for.

    Nothing of `plan` is open. What the fork does not answer, and everything where none can be had,
    is worked out here. It holds nothing that needs an end: it writes numbers to a pipe, or nobody
    reads them.
    """
    plans = _asked_for(shape, plan, device)
    if not hasattr(os, "fork"):
        return weighing
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:  # As many processes as the user may have.
        os.close(reading)
        os.close(writing)
        return weighing
    if child == 0:
        _answer(weighing, plans, writing)
    os.close(writing)
    answers = _Answers(reading, child, plans)

    def peaks(changed: RunPlan) -> Peaks:
        return answers.get(changed) or weighing(changed)

    return peaks


def _asked_for(shape: ModelShape, plan: RunPlan, device: Device | None) -> list[RunPlan]:
    """The plan and its changes, as advice will ask for them, and what older GPUs take instead of
    flash attention, as their fit will."""
    plan = plan_on(plan, device, shape)
    found = [plan]
    if plan.attention == "sdpa":
        found.append(replace(plan, attention="efficient"))
    return [*found, *(changed for changed, _ in changed_plans(shape, plan))]


def _answer(weighing: Weighing, plans: Iterable[RunPlan], writing: int) -> None:
    """The whole life of the fork. It never returns: nothing of the program it came from is its."""
    code = 1
    try:
        answers = []
        for plan in plans:
            try:
                answers.append(dict(weighing(plan).by_phase))
            except UsageError:
                answers.append({})  # Said where it is asked for.
        with open(writing, "wb") as pipe:
            pipe.write(marshal.dumps(answers))
        code = 0
    finally:
        os._exit(code)


class _Answers:
    """What the fork found, read when it is first asked for."""

    def __init__(self, reading: int, child: int, plans: list[RunPlan]) -> None:
        self._reading = reading
        self._child = child
        self._plans = plans
        self._found: dict[RunPlan, Peaks] | None = None

    def get(self, plan: RunPlan) -> Peaks | None:
        if self._found is None:
            self._found = self._read()
        return self._found.get(plan)

    def _read(self) -> dict[RunPlan, Peaks]:
        with open(self._reading, "rb") as pipe:
            written = pipe.read()
        os.waitpid(self._child, 0)
        try:
            answers = marshal.loads(written)
        except (EOFError, ValueError, TypeError):
            return {}  # It was ended before it was done.
        pairs = zip(self._plans, answers, strict=True)
        return {plan: Peaks(by_phase) for plan, by_phase in pairs if by_phase}


__all__ = ["weighed_beside"]
