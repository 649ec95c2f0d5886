"""What a run is asked for, as one line of JSON. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan


@dataclass(frozen=True)
class RunRequest:
    """A run.

    Attributes:
        model: as the user typed it.
        plan: what may be open in it is filled in later.
        steps: how many; None runs until it is stopped.
        data: path of a text file; None takes the built-in text.
        device: "auto", "cpu", "cuda" or "cuda:N", where N counts the GPUs that
            CUDA_VISIBLE_DEVICES leaves, in the order of NVML.
        text: a prompt whose logits are compared with the adapters on and off; None compares
            nothing.
        usual: whether nobody chose the length of sequences, so that it gives way to a model that
            has learned fewer positions.
    """

    model: str
    plan: RunPlan
    steps: int | None = None
    data: str | None = None
    device: str = "auto"
    text: str | None = None
    usual: bool = False


def parse_request(line: str | bytes) -> RunRequest:
    """The run that a line asks for.

    Raises UsageError where it is no such line: the program that started the run made it.
    """
    try:
        asked = json.loads(line)
    except ValueError as error:
        raise UsageError(
            f"What to run is asked for in one line of JSON; this is none: {error}."
        ) from error
    if not isinstance(asked, dict) or not isinstance(asked.get("model"), str):
        raise UsageError('What to run names a model, as in {"model": "demo", "plan": {}}.')
    unknown = sorted(asked.keys() - {field.name for field in fields(RunRequest)})
    if unknown:
        raise UsageError(f"{', '.join(unknown)} says nothing of a run.")
    steps = asked.get("steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise UsageError(f"The number of steps is a whole number from 1 on, not {steps!r}.")
    for name in ("data", "device", "text"):
        if not isinstance(asked.get(name), str | None):
            raise UsageError(f"{name} is a text, not {asked[name]!r}.")
    return RunRequest(
        asked["model"],
        _plan(asked.get("plan") or {}),
        steps,
        asked.get("data"),
        asked.get("device") or "auto",
        asked.get("text"),
        asked.get("usual") is True,
    )


def _plan(given: Any) -> RunPlan:
    if not isinstance(given, Mapping):
        raise UsageError(f"A plan is an object of its fields, not {given!r}.")
    unknown = sorted(given.keys() - {field.name for field in fields(RunPlan)})
    if unknown:
        raise UsageError(f"A plan has no {', '.join(unknown)}.")
    values = dict(given)
    if "lora_targets" in values:
        targets = values["lora_targets"]
        values["lora_targets"] = (targets,) if isinstance(targets, str) else tuple(targets)
    return RunPlan(**values)
