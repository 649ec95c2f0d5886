"""From a model and a plan to the data of the memory report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from qtui.cli.memory_ahead import weighed_beside
from qtui.cli.plan_options import given_options
from qtui.profiles import calibrated
from qtui_core.memory.advice.capacity import Knob
from qtui_core.memory.advice.changes import weighed_plans
from qtui_core.memory.advice.report import MemoryReport, peaks_on, report_of, report_of_plan
from qtui_core.memory.devices.finding import Device, device_of_memory, find_device
from qtui_core.memory.plan.refusals import not_built_in
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run, resolve_for, within_positions
from qtui_core.memory.shape.description import describe
from qtui_core.memory.shape.from_config import UnknownFamily
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.models import ModelSource
from qtui_core.quantities import parse_memory

#: Seconds until a dropped Ctrl+C is sent again: longer than any `__del__` takes.
_SOON: Final = 0.01


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside this context a Ctrl+C that Python drops is sent again until it arrives, and Python
    prints nothing about it.

    Python prints and drops every exception that is raised in a `__del__`. A tape frees its buffers
    there, so a good part of all interruptions would be lost.
    """
    before = sys.unraisablehook

    def send_again(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            before(dropped)
            return
        from threading import Timer

        signum = getattr(dropped.exc_value, "signum", signal.SIGINT)
        timer = Timer(_SOON, os.kill, (os.getpid(), signum))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = send_again
    try:
        yield
    except KeyboardInterrupt:
        # On the way out, a buffer that was only half made fails when it is freed. The user has
        # just ended the program and does not want to read about it.
        sys.unraisablehook = _say_nothing
        raise
    except BaseException:
        sys.unraisablehook = before
        raise
    sys.unraisablehook = before


def _say_nothing(dropped: Any) -> None:
    pass


def chosen_device(gpu: str | None, vram: str | None) -> Device | None:
    """The device of --gpu, with its profile if this machine has one, or of --vram; None without
    either. Raises UsageError for an unknown GPU and for a size that does not parse."""
    if gpu is not None:
        return calibrated(find_device(gpu))
    return None if vram is None else device_of_memory(parse_memory(vram))


def report_on(
    source: ModelSource,
    asked: RunPlan,
    device: Device | None = None,
    knob: Knob | None = None,
    *,
    alone: bool = False,
) -> MemoryReport:
    """The data of the report on an open model, estimated from its shape. `alone` says that this
    thread is the only one of its process, which may then fork.

    Raises ModelError for a model without a configuration, UsageError for a family without a shape
    and for an impossible plan.
    """
    model = describe(source)
    shape = model.read_shape()
    asked = _as_long_as_it_can_be(asked, shape)
    wanted = resolve_for(shape, asked)
    plan = plan_as_run(shape, wanted, device)
    with interruptible():
        peaks = peaks_on(shape, device)
        if alone:
            peaks = weighed_beside(peaks, weighed_plans(shape, plan))
        return report_of_plan(
            model, shape, plan, device, knob, asked=asked, wanted=wanted, peaks=peaks
        )


@interruptible()
def report_on_trace(
    source: ModelSource, asked: RunPlan, device: Device | None = None
) -> MemoryReport:
    """The data of the report, estimated from a trace of the class of transformers; it also works
    for a family without a shape.

    Raises ModelError and UsageError where the model cannot be built, QtuiError where the trace
    fails.
    """
    from qtui.engine.estimator.asked_trace import traced_estimate

    model = describe(source)
    shape = None
    # An unknown family is no problem here: the trace builds the class of transformers.
    with contextlib.suppress(UnknownFamily):
        shape = model.read_shape()
        asked = _as_long_as_it_can_be(asked, shape)
    found = traced_estimate(model.config, shape, asked, device)
    unknown = shape is None or not_built_in(shape, found.plan)
    weighing = None if shape is None or unknown else peaks_on(shape, device)
    wanted = None if shape is None else resolve_for(shape, asked)
    return report_of(model, found, weighing, asked=asked, wanted=wanted)


def _as_long_as_it_can_be(plan: RunPlan, shape: ModelShape) -> RunPlan:
    """The plan with its sequence cut to the positions that the model has learned, unless --seq was
    typed."""
    context = click.get_current_context(silent=True)
    if context is None or "--seq" in given_options(context):
        return plan
    return within_positions(shape, plan)
