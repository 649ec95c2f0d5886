"""Reading a scheme, and turning one of its knobs."""

from __future__ import annotations

from qtui.engine.operations.session import Session
from qtui.engine.schemes import describe_scheme
from qtui.engine.schemes import step_scheme as step
from qtui.engine.task import Result, Task
from qtui_core.quant import Scheme


def scheme(session: Session, task: Task) -> Result:
    return Result(describe_scheme(Scheme.parse(task.text("text"))))


def step_scheme(session: Session, task: Task) -> Result:
    found = Scheme.parse(task.text("text"))
    return Result(describe_scheme(step(found, task.text("part"), task.integer("direction"))))


OPERATIONS = {"scheme": (scheme, "quick"), "step_scheme": (step_scheme, "quick")}
