"""From a model and a plan to the data of the memory report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import click

from qtui.cli.plan_options import given_options
from qtui.cli.progress import progress_on_stderr
from qtui.profiles import calibrated
from qtui_core.errors import QtuiError
from qtui_core.memory.advice.fit import Knob
from qtui_core.memory.advice.report import MemoryReport, peaks_on, report_of, report_of_plan
from qtui_core.memory.devices.device import Device, device_of_memory, find_device
from qtui_core.memory.plan.run_plan import (
    RunPlan,
    plan_as_run,
    resolve_for,
    within_positions,
    without_step,
)
from qtui_core.memory.shape.description import ModelDescription, describe
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.models import ModelSource
from qtui_core.quantities import parse_memory


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
        # Longer than any `__del__` takes.
        timer = Timer(0.01, os.kill, (os.getpid(), signum))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = send_again
    try:
        yield
    except KeyboardInterrupt:
        # On the way out, a buffer that was only half made fails when it is freed. The user has
        # just ended the program and does not want to read about it.
        sys.unraisablehook = lambda dropped: None
        raise
    except BaseException:
        sys.unraisablehook = before
        raise
    sys.unraisablehook = before


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
    trace: bool | None = None,
) -> MemoryReport:
    """The data of the report on an open model: from the shape of its family; without one, from a
    trace of the class of transformers; where neither is possible, or with a `knob`, from the
    nearest kind of decoder. `trace` asks for a trace, or for none.

    Raises ModelError for a model without a configuration, UsageError for an impossible plan and for
    a configuration without sizes; what a trace raises that was asked for.
    """
    model = describe(source)
    shape = model.read_shape()
    context = click.get_current_context(silent=True)
    if context is not None and "--seq" not in given_options(context):
        asked = within_positions(shape.learned_positions, asked)
    with interruptible():
        if trace or (trace is None and shape.known == "assumed" and knob is None):
            try:
                return _traced(model, shape, asked, device)
            except QtuiError as error:
                if trace:
                    raise
                shape = replace(shape, why=f"{shape.why} {error}")
        shape = model.for_step(shape, without_step(shape, resolve_for(shape, asked)))
        wanted = resolve_for(shape, asked)
        plan = plan_as_run(shape, wanted, device)
        return report_of_plan(model, shape, plan, device, knob, asked=asked, wanted=wanted)


def _traced(
    model: ModelDescription, shape: ModelShape, asked: RunPlan, device: Device | None
) -> MemoryReport:
    """The data of the report from a trace. Raises ModelError and UsageError where the model cannot
    be built, QtuiError where the trace fails."""
    from qtui.engine.estimator.asked_trace import traced_estimate

    with progress_on_stderr("Tracing") as job:
        found = traced_estimate(model, shape, asked, device, partial(job.at, 0, 0))
    weighing = peaks_on(shape, device) if found.shape is not None else None
    wanted = resolve_for(shape, asked) if found.shape is not None else None
    return report_of(model, found, weighing, asked=asked, wanted=wanted, why=shape.why)
