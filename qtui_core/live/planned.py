"""The plan of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from qtui_core.memory.plan import RunPlan


def plan_of(recorded: Mapping[str, Any]) -> RunPlan:
    """The plan of a header, as far as this version knows its fields; what another version did not
    record is as by default."""
    known = {field.name for field in fields(RunPlan)}
    given = {name: value for name, value in recorded.items() if name in known}
    if "lora_targets" in given:
        given["lora_targets"] = tuple(given["lora_targets"])
    return RunPlan(**given)
