"""The plan of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from qtui_core.memory.plan.run_plan import RunPlan


def plan_of(recorded: Mapping[str, Any]) -> RunPlan:
    """The plan of a header, as far as this version knows its fields. A field that another version
    did not record, or recorded with another type, has its default."""
    given: dict[str, Any] = {}
    for name, hint in _hints().items():
        if name in recorded and _is_of(recorded[name], hint):
            value = recorded[name]
            given[name] = tuple(value) if isinstance(value, list) else value
    return RunPlan(**given)


@cache
def _hints() -> Mapping[str, Any]:
    hints = get_type_hints(RunPlan)
    return {field.name: hints[field.name] for field in fields(RunPlan)}


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the type of a field. Any string counts as a name, since later
    versions may have more names."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_is_of(value, each) for each in get_args(hint))
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint
