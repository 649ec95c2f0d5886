"""Asks a process of its own (tracing.py) for the recording of real classes; imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from qtui_core.children import child_environment
from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.record import ALLOCATE, Component, Event, Label, Recording

#: Lines of a failed process that are told.
_LINES = 3


def trace(config: Mapping[str, Any], plan: RunPlan) -> Recording:
    """The recording of a run of `plan` by the classes of the installed transformers and peft, over
    tensors without values.

    Raises ModelError and UsageError for what cannot be built, QtuiError where this system cannot
    trace or the process fails.
    """
    asked = json.dumps({"config": dict(config), "plan": asdict(plan)})
    done = subprocess.run(
        # -P: no file beside the user is taken for a library.
        [sys.executable, "-P", "-m", "qtui.engine.tracing"],
        input=asked,
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-_LINES:]) or "without a word"
        raise QtuiError(f"The trace ended with code {done.returncode}: {last}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        kinds: dict[int, type[QtuiError]] = {2: UsageError, 3: ModelError}
        raise kinds.get(answer["code"], QtuiError)(answer["error"])
    return Recording(tuple(_read(event) for event in answer["events"]), answer["origin"])


def _read(event: list[Any]) -> Event:
    if event[0] != ALLOCATE:
        return tuple(event)
    kind, number, nbytes, what, component = event
    return (kind, number, nbytes, Label(what, component and Component(component)))
