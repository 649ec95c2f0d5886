"""Traces real classes in a process of its own (tracing.py). Nothing here imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from qtui_core.child_environment import child_environment
from qtui_core.errors import QtuiError, UsageError, error_of
from qtui_core.memory.devices.device import Device
from qtui_core.memory.estimate import Estimate, estimate_recording
from qtui_core.memory.formulas.size import product_of
from qtui_core.memory.plan.run_plan import RunPlan, plan_on, resolve_for
from qtui_core.memory.replay.record import ALLOCATE, Component, Event, Label, Recording
from qtui_core.memory.shape.description import stored_as
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packed import packing_of
from qtui_core.memory.shape.packings import STORED

#: The last lines of a failed process's output that are shown.
_LINES = 3
#: Seconds between two checks whether the trace was cancelled. A trace takes seconds or minutes.
_CHECK_SECONDS = 0.2


def _never() -> None:
    """The check of a trace that is never cancelled."""


def traced_estimate(
    config: Mapping[str, Any],
    shape: ModelShape | None,
    plan: RunPlan,
    device: Device | None = None,
    check: Callable[[], None] = _never,
) -> Estimate:
    """The estimate of a run of `plan`, from a trace of the classes for `config`. `shape` is None if
    there is none for the family. Raises what `trace` and `check` raise."""
    resolved = resolve_for(stored_as(config) if shape is None else shape, plan)
    packing = packing_of(config)
    if packing is not None and resolved.quant == STORED:
        raise UsageError(
            f"The checkpoint is stored as {packing.title}, and a trace runs classes with plain "
            "weights; add --quant none to trace it unpacked, with --method inference, lora or full."
        )
    resolved = plan_on(resolved, device, shape)
    recording = trace(config, resolved, check)
    check()
    return estimate_recording(recording, shape, resolved, device)


def trace(
    config: Mapping[str, Any], plan: RunPlan, check: Callable[[], None] = _never
) -> Recording:
    """The recording of a run of `plan` with the classes of the installed transformers and peft, on
    tensors without values. Every option of `plan` has a value. `check` is called repeatedly; if it
    raises, the process is killed.


    Raises ModelError and UsageError for what cannot be built, QtuiError where this system cannot
    trace or the process fails.
    """
    asked = json.dumps({"config": dict(config), "plan": asdict(plan)})
    with subprocess.Popen(
        # -P: no file in the user's folder is taken for a library.
        [sys.executable, "-P", "-m", "qtui.engine.estimator.tracing", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as process:
        try:
            output, errors = _answer_of(process, asked, check)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        last = " ".join(errors.strip().splitlines()[-_LINES:]) or "it printed nothing"
        raise QtuiError(f"The trace ended with code {process.returncode}: {last}")
    answer = json.loads(output)
    if "error" in answer:
        raise error_of(answer["error"], answer["code"])
    return Recording(tuple(_read(event) for event in answer["events"]), answer["origin"])


def _answer_of(
    process: subprocess.Popen[str], asked: str, check: Callable[[], None]
) -> tuple[str, str]:
    text: str | None = asked
    while True:
        try:
            return process.communicate(text, timeout=_CHECK_SECONDS)
        except subprocess.TimeoutExpired:
            text = None  # it is on its way
            check()


def _read(event: list[Any]) -> Event:
    if event[0] != ALLOCATE:
        return tuple(event)
    kind, number, nbytes, what, component, factors = event
    size = product_of(factors) if factors else nbytes
    return (kind, number, size, Label(what, component and Component(component)))
