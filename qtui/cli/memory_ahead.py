"""The peaks of changed plans, worked out in a fork while this process estimates the plan itself."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterable

from qtui_core.errors import UsageError
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.replay.curve import Peaks

Weighing = Callable[[RunPlan], Peaks]


def weighed_beside(weighing: Weighing, plans: list[RunPlan]) -> Weighing:
    """A function that returns what `weighing` does. A fork of this process starts at once on
    `plans`, which are resolved; what it does not answer is worked out here.

    The fork needs no cleaning up: it writes its numbers to a pipe and ends, whether anybody reads
    them or not.
    """
    if not hasattr(os, "fork"):
        return weighing
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:  # The user has as many processes as allowed.
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


def _answer(weighing: Weighing, plans: Iterable[RunPlan], writing: int) -> None:
    """The whole life of the fork. It never returns into the program that it was forked from."""
    code = 1
    try:
        answers = []
        for plan in plans:
            try:
                answers.append(dict(weighing(plan).by_phase))
            except UsageError:
                answers.append({})  # Raised again in the parent, if it asks for this plan.
        with open(writing, "wb") as pipe:
            pipe.write(marshal.dumps(answers))
        code = 0
    finally:
        os._exit(code)


class _Answers:
    """What the fork found; read from the pipe at the first question."""

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
            return {}  # The fork was killed before it was done.
        pairs = zip(self._plans, answers, strict=True)
        return {plan: Peaks(by_phase) for plan, by_phase in pairs if by_phase}
