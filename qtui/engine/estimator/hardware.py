"""What the Hardware panel asks the estimator's process: the GPUs as they are, the operations of a
plan, and to have this machine measured (in a process of its own that has torch)."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any, Final

from qtui.engine.estimator.answers import Operations, Readings
from qtui.engine.estimator.subjects import Estimates, question_of
from qtui.engine.task import Result, Task
from qtui_core.children import child_environment
from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.memory.compute.intensity import operations_of
from qtui_core.memory.plan.run_plan import resolve_for
from qtui_core.memory.step.on_device import plan_on
from qtui_core.telemetry.readings import read_all

#: Lines of a failed process that are told.
_LINES: Final = 3
#: Seconds between looks at whether a measurement is still wanted.
_LOOK: Final = 0.2


def gpus(estimates: Estimates, task: Task) -> Result:
    """Every GPU at this moment."""
    return Result(Readings(tuple(read_all())))


def operations(estimates: Estimates, task: Task) -> Result:
    """The operations of a step of a plan."""
    question = question_of(estimates, task)
    shape, plan = question.shape, question.asked
    longest = shape.max_positions
    if task.params.get("usual") and longest and longest < plan.sequence:
        plan = dataclasses.replace(plan, sequence=longest)
    resolved = plan_on(resolve_for(shape, plan), question.device, shape)
    return Result(Operations(resolved, tuple(operations_of(shape, resolved))))


def measure(estimates: Estimates, task: Task) -> Result:
    """The rates of a device, each told as it is measured."""
    # A file, because a pipe that nobody empties would stop the child.
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        return _measure(task, stderr)


def _measure(task: Task, stderr: IO[str]) -> Result:
    child = subprocess.Popen(
        # -P: no file beside the user is taken for a library.
        [
            sys.executable,
            "-P",
            "-m",
            "qtui.engine.calibration.measuring",
            str(task.params.get("on", "auto")),
        ],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=child_environment(),
    )
    over = threading.Event()
    watcher = threading.Thread(target=_end_when_cancelled, args=(child, task, over), daemon=True)
    watcher.start()
    found: dict[str, Any] = {"device": None, "rates": []}
    try:
        with child:
            for line in child.stdout or ():
                if not line.endswith("\n"):
                    break  # it was killed meanwhile
                told = json.loads(line)
                if "error" in told:
                    kinds: dict[int, type[QtuiError]] = {2: UsageError, 3: ModelError}
                    raise kinds.get(told["code"], QtuiError)(told["error"])
                if "device" in told:
                    found["device"] = told["device"]
                else:
                    found["rates"].append(told["rate"])
                task.progress(0.0, told)
    finally:
        over.set()
        if child.poll() is None:
            child.kill()
    task.check()
    if child.returncode:
        stderr.seek(0)
        words = stderr.read().strip().splitlines()
        last = " ".join(words[-_LINES:]) or "without a word"
        raise QtuiError(f"The measurement ended with code {child.returncode}: {last}")
    return Result(found)


def _end_when_cancelled(child: subprocess.Popen[str], task: Task, over: threading.Event) -> None:
    while not over.wait(_LOOK):
        if task.is_cancelled():
            child.kill()
            return


#: Lanes of their own: live values must not wait for an estimate, nor a key for a measurement.
OPERATIONS = {
    "gpus": (gpus, "live"),
    "operations": (operations, "view"),
    "measure": (measure, "measure"),
}
