"""From MODEL and a plan to everything that a report of memory shows."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final

import click

from qtui.cli.memory_ahead import weighed_beside
from qtui.cli.plan_options import given_options
from qtui.profiles import calibrated
from qtui.report.memory.build import Described, described, report_of
from qtui.report.memory.data import MemoryReport
from qtui_core.memory.advice.fit import Knob, largest
from qtui_core.memory.devices.finding import Device, device_of_memory, find_device, parse_memory
from qtui_core.memory.estimate import estimate_resolved
from qtui_core.memory.plan.refusals import not_built_in
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for, within_positions
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.replay.peaks import estimate_peaks
from qtui_core.memory.shape.from_config import UnknownFamily
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.models import ModelSource

#: Seconds until a lost interruption is sent once more: longer than any `__del__` takes.
_SOON: Final = 0.01


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it a Ctrl+C that Python would drop is sent again until it arrives, and nothing is
    printed of it.

    Python drops every exception that is raised in a `__del__`, and prints it. A tape frees its
    buffers there, so a good part of all interruptions would be lost, and with each the event of a
    buffer.
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
        # A buffer that was only half made is freed on the way out and fails, of which nobody
        # wants to hear who has just ended the program.
        sys.unraisablehook = _say_nothing
        raise
    except BaseException:
        sys.unraisablehook = before
        raise
    sys.unraisablehook = before


def _say_nothing(dropped: Any) -> None:
    pass


def chosen_device(gpu: str | None, vram: str | None) -> Device | None:
    """The device that --gpu or --vram means, with what was measured of it here. Raises UsageError
    for an unknown one."""
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
    """The report on an open model, from its shape. `alone` is whether this thread is the only one
    of its process, which may then use a second processor by a fork.

    Raises ModelError for a model without a configuration, UsageError for a family without a shape
    and for a plan that cannot be.
    """
    model = described(source)
    shape = model.read_shape()
    asked = _as_long_as_it_can_be(asked, shape)
    return report_of_plan(
        model, shape, resolve_for(shape, asked), device, knob, asked=asked, alone=alone
    )


@interruptible()
def report_of_plan(
    model: Described,
    shape: ModelShape,
    plan: RunPlan,
    device: Device | None = None,
    knob: Knob | None = None,
    *,
    asked: RunPlan,
    alone: bool = False,
) -> MemoryReport:
    """The report on a plan of which nothing is open. Raises UsageError for one that cannot be on
    the model."""
    weighing = _weighing(shape, device)
    if alone:
        weighing = weighed_beside(weighing, shape, plan, device)
    found = estimate_resolved(shape, plan, device)
    most = None
    if knob is not None and device is not None:
        most = largest(shape, plan, knob, device)
    return report_of(
        model,
        found,
        weighing,
        largest=most,
        asked=asked,
        wanted=plan,
        again=partial(estimate_resolved, shape),
    )


@interruptible()
def report_on_trace(
    source: ModelSource, asked: RunPlan, device: Device | None = None
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
        asked = _as_long_as_it_can_be(asked, shape)
    found = traced_estimate(model.config, shape, asked, device)
    unknown = shape is None or not_built_in(shape, found.plan)
    weighing = None if shape is None or unknown else _weighing(shape, device)
    wanted = None if shape is None else resolve_for(shape, asked)
    return report_of(model, found, weighing, asked=asked, wanted=wanted)


def _as_long_as_it_can_be(plan: RunPlan, shape: ModelShape) -> RunPlan:
    """The plan with the longest sequence that a model has learned positions for, where that is
    shorter than the default and no other was typed."""
    context = click.get_current_context(silent=True)
    if context is None or "--seq" in given_options(context):
        return plan
    return within_positions(shape, plan)


def _weighing(shape: ModelShape, device: Device | None) -> Callable[[RunPlan], Peaks]:
    """The peaks of changed plans, each estimated once."""

    @cache
    def peaks(changed: RunPlan) -> Peaks:
        return estimate_peaks(shape, changed, device)

    return peaks
