"""The flags of a plan, made from its table of options; shared by the commands that take a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from qtui_core.memory.plan.choices import parse_targets
from qtui_core.memory.plan.option import PlanOption, grouped_options, options_of
from qtui_core.memory.plan.options import RunPlan

Command = Callable[..., Any]


def _click_option(row: PlanOption) -> Command:
    if row.kind == "switch":
        return click.option(f"{row.flag}/{row.off}", row.name, default=row.default, help=row.help)
    types = {"choice": click.Choice(row.allowed), "whole": int, "share": float}
    return click.option(
        row.flag,
        row.name,
        type=types.get(row.kind),
        default=",".join(row.default) if row.kind == "names" else row.default,
        show_default=row.default is not None,
        metavar=row.metavar or None,
        help=row.help,
    )


def given_options(ctx: click.Context) -> list[str]:
    """The flags of a plan that were typed, such as "--batch"."""
    return [
        row.flag
        for rows in grouped_options(RunPlan).values()
        for row in rows
        if ctx.get_parameter_source(row.name) is not ParameterSource.DEFAULT
    ]


def plan_options(command: Command) -> Command:
    """Adds every option of a plan to a click command, which gets the plan as `plan`."""
    rows = options_of(RunPlan)

    @wraps(command)
    def with_plan(*args: Any, **values: Any) -> Any:
        plan = {row.name: values.pop(row.name) for row in rows}
        plan["lora_targets"] = parse_targets(plan["lora_targets"])
        return command(*args, plan=RunPlan(**plan), **values)

    wrapped: Command = with_plan
    for row in reversed(rows):
        wrapped = _click_option(row)(wrapped)
    return wrapped
