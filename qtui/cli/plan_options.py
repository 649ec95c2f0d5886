"""The flags of a plan, made from its table of options; shared by the commands that take a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from qtui_core.memory.plan.options import PlanOption, RunPlan, grouped_options, options_of

Command = Callable[..., Any]


def _click_option(row: PlanOption) -> Command:
    if row.kind == "switch":
        return click.option(f"{row.flag}/{row.off}", row.name, default=row.default, help=row.help)
    return click.option(
        row.flag,
        row.name,
        type=click.Choice(row.allowed) if row.kind == "choice" else str,
        default=None if row.default is None else row.written(row.default).partition(" ")[2],
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
        for row in rows:
            if row.read is not None and row.kind in ("whole", "share", "names"):
                plan[row.name] = row.read(plan[row.name])
        return command(*args, plan=RunPlan(**plan), **values)

    wrapped: Command = with_plan
    for row in reversed(rows):
        wrapped = _click_option(row)(wrapped)
    return wrapped
