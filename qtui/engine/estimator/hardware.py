"""The operations for the Hardware panel: readings of the GPUs, the operations of a plan, and the
rates of this machine, which a process of its own with torch measures."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from typing import IO, Final

from qtui.engine.estimator.answers import MeasurementLine, Operations, RatesMeasured, Readings
from qtui.engine.estimator.requests import OperationsRequest, RatesRequest
from qtui.engine.estimator.subjects import Estimates, question_of
from qtui.engine.task import OperationTable, Task
from qtui_core.child_environment import child_environment
from qtui_core.codec import from_plain
from qtui_core.errors import QtuiError, error_of
from qtui_core.memory.compute.intensity import operations_of
from qtui_core.memory.plan.run_plan import plan_on, resolve_for
from qtui_core.telemetry.readings import read_all

#: The last lines of a failed process's output that are shown.
_LINES: Final = 3
#: Seconds between two checks whether the measurement was cancelled.
_LOOK: Final = 0.2


def gpus(estimates: Estimates, task: Task[object]) -> Readings:
    """Readings of every GPU now."""
    return Readings(tuple(read_all()))


def operations(estimates: Estimates, task: Task[OperationsRequest]) -> Operations:
    """The operations of one step of a plan."""
    question = question_of(estimates, task.asked)
    shape, plan = question.shape, question.asked
    longest = shape.max_positions
    if task.asked.usual and longest and longest < plan.sequence:
        plan = dataclasses.replace(plan, sequence=longest)
    resolved = plan_on(resolve_for(shape, plan), question.device, shape)
    return Operations(resolved, tuple(operations_of(shape, resolved)))


def measure(estimates: Estimates, task: Task[RatesRequest]) -> RatesMeasured:
    """The rates of a device. Each is reported as progress as soon as it is measured."""
    # A file and not a pipe: a full pipe would block the child.
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        return _measure(task, stderr)


def _measure(task: Task[RatesRequest], stderr: IO[str]) -> RatesMeasured:
    child = subprocess.Popen(
        # -P: no file in the user's folder is taken for a library.
        [
            sys.executable,
            "-P",
            "-m",
            "qtui.engine.calibration.rates_worker",
            task.asked.on,
        ],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=child_environment(),
    )
    over = threading.Event()
    watcher = threading.Thread(target=_end_when_cancelled, args=(child, task, over), daemon=True)
    watcher.start()
    device, rates = None, []
    try:
        with child:
            for line in child.stdout or ():
                if not line.endswith("\n"):
                    break  # the child was killed in the middle of a line
                found = from_plain(MeasurementLine, json.loads(line))
                if found.error:
                    raise error_of(found.error, found.code)
                device = found.device or device
                if found.rate is not None:
                    rates.append(found.rate)
                task.progress(0.0, found)
    finally:
        over.set()
        if child.poll() is None:
            child.kill()
    task.check()
    if child.returncode:
        stderr.seek(0)
        words = stderr.read().strip().splitlines()
        last = " ".join(words[-_LINES:]) or "it printed nothing"
        raise QtuiError(f"The measurement ended with code {child.returncode}: {last}")
    return RatesMeasured(device, tuple(rates))


def _end_when_cancelled(
    child: subprocess.Popen[str], task: Task[RatesRequest], over: threading.Event
) -> None:
    while not over.wait(_LOOK):
        if task.is_cancelled():
            child.kill()
            return


#: Each has a lane of its own: live values must not wait for an estimate, nor keys for a
#: measurement.
OPERATIONS: OperationTable = {
    "gpus": (gpus, "live", None),
    "operations": (operations, "view", OperationsRequest),
    "measure": (measure, "measure", RatesRequest),
}
