"""From MODEL and a plan to everything that a report of memory shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import click

from qtui.cli.memory_ahead import weighed_beside
from qtui.cli.memory_interrupt import interruptible
from qtui.cli.plan_options import given_options
from qtui.profiles import calibrated
from qtui.report.memory.build import described, report_of
from qtui.report.memory.data import MemoryReport
from qtui_core.memory.advice.fit import Knob, largest
from qtui_core.memory.devices.finding import Device, device_of_memory, find_device, parse_memory
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.rules import learned_positions, not_built_in
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.replay.peaks import estimate_peaks
from qtui_core.memory.shape.from_config import UnknownFamily
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.models import ModelSource


def chosen_device(gpu: str | None, vram: str | None) -> Device | None:
    """The device that --gpu or --vram means, with what was measured of it here. Raises UsageError
    for an unknown one."""
    if gpu is not None:
        return calibrated(find_device(gpu))
    return None if vram is None else device_of_memory(parse_memory(vram))


@interruptible()
def report_on(
    source: ModelSource,
    plan: RunPlan,
    device: Device | None = None,
    knob: Knob | None = None,
    *,
    alone: bool = False,
) -> MemoryReport:
    """The report on an open model, from its shape. `alone` is whether this thread is the only one
    of its process, which may then use a second processor by a fork.

    Raises ModelError for a model without a configuration, UsageError for a family without a shape
    and for a plan that cannot be.
    """
    model = described(source)
    shape = model.read_shape()
    plan = _as_long_as_it_can_be(plan, shape)
    weighing = _weighing(shape, device)
    if alone:
        weighing = weighed_beside(weighing, shape, plan, device)
    found = estimate(shape, plan, device)
    most = None
    if knob is not None and device is not None:
        most = largest(shape, plan, knob, device)
    return report_of(
        model,
        found,
        weighing,
        largest=most,
        asked=plan,
        again=partial(estimate, shape),
    )


def report_on_trace(
    source: ModelSource, plan: RunPlan, device: Device | None = None
) -> MemoryReport:
    """The same from a trace of the class of transformers, also for a family without a shape.

    Raises ModelError and UsageError for what cannot be built, QtuiError where the trace fails.
    """
    from qtui.engine.estimator.asked_trace import traced_estimate

    model = described(source)
    shape = None
    # What a trace is for: where no shape is built in, the class says what the model is.
    with contextlib.suppress(UnknownFamily):
        shape = model.read_shape()
        plan = _as_long_as_it_can_be(plan, shape)
    found = traced_estimate(model.config, shape, plan, device)
    unknown = shape is None or not_built_in(shape, found.plan)
    weighing = None if shape is None or unknown else _weighing(shape, device)
    return report_of(model, found, weighing, asked=plan)


def _as_long_as_it_can_be(plan: RunPlan, shape: ModelShape) -> RunPlan:
    """The plan with the longest sequence that a model has learned positions for, where that is
    shorter than the default and no other was typed."""
    context = click.get_current_context(silent=True)
    if context is None or "--seq" in given_options(context):
        return plan
    return within_positions(plan, shape)


def within_positions(plan: RunPlan, shape: ModelShape) -> RunPlan:
    """The plan with a sequence no longer than a model has learned positions for."""
    longest = learned_positions(shape)
    if longest is None:
        return plan
    return replace(plan, sequence=max(1, min(plan.sequence, longest - plan.generate)))


def _weighing(shape: ModelShape, device: Device | None) -> Callable[[RunPlan], Peaks]:
    """The peaks of changed plans, each estimated once."""

    @cache
    def peaks(changed: RunPlan) -> Peaks:
        return estimate_peaks(shape, changed, device)

    return peaks
