"""The operations for the Hardware panel: readings of the GPUs, the operations of a plan, and the
rates of this machine, which a process of its own with torch measures."""

from __future__ import annotations

import json

from qtui.engine.estimator.answers import MeasurementLine, Operations, RatesMeasured, Readings
from qtui.engine.estimator.requests import PlanRequest, RatesRequest
from qtui.engine.estimator.subjects import Estimates, question_of
from qtui.engine.line_child import lines_of
from qtui.engine.task import OperationTable, Task
from qtui_core.codec import from_plain
from qtui_core.errors import error_of
from qtui_core.memory.plan.run_plan import RunPlan, plan_on, resolve_for, within_positions
from qtui_core.roofline.step import operations_of
from qtui_core.telemetry.readings import read_all


def gpus(estimates: Estimates, task: Task[object]) -> Readings:
    """Readings of every GPU now."""
    return Readings(tuple(read_all()))


def operations(estimates: Estimates, task: Task[PlanRequest]) -> Operations:
    """The operations of one step of a plan."""
    question = question_of(estimates, task.asked)
    shape, plan = question.shape, question.asked
    if plan.sequence == RunPlan().sequence:
        plan = within_positions(shape.learned_positions, plan)
    resolved = plan_on(resolve_for(shape, plan), question.device, shape)
    return Operations(resolved, operations_of(shape, resolved), shape.known == "assumed")


def measure(estimates: Estimates, task: Task[RatesRequest]) -> RatesMeasured:
    """The rates of a device. Each is reported as progress as soon as it is measured."""
    device, rates, worker = None, [], "qtui.engine.calibration.rates_worker"
    for line in lines_of("The measurement", worker, task.asked.on, check=task.check):
        found = from_plain(MeasurementLine, json.loads(line))
        if found.error:
            raise error_of(found.error, found.code)
        device = found.device or device
        if found.rate is not None:
            rates.append(found.rate)
        task.progress(0.0, found)
    return RatesMeasured(device, tuple(rates))


#: Each has a lane of its own: live values must not wait for an estimate, nor keys for a
#: measurement.
OPERATIONS: OperationTable = {
    "gpus": (gpus, "live", None),
    "operations": (operations, "view", PlanRequest),
    "measure": (measure, "measure", RatesRequest),
}
