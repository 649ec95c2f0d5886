"""A plan as the options of the command line that make it, so that what a report shows can be typed
again, and a change is named as what to type."""

from __future__ import annotations

from collections.abc import Iterator

from qtui_core.memory.plan.option import PlanOption, grouped_options
from qtui_core.memory.plan.options import RunPlan


def grouped(plan: RunPlan) -> list[tuple[str, str]]:
    """(group, its options) of everything in a plan. Adapters are left out where there are none."""
    return [
        (group, " ".join(option.written(getattr(plan, option.name)) for option in options))
        for group, options in grouped_options(type(plan)).items()
        if group != "adapters" or plan.adapts
    ]


def change(before: RunPlan, after: RunPlan) -> str:
    """What to type to come from one plan to another."""
    return " ".join(
        option.written(getattr(after, option.name))
        for options in grouped_options(type(after)).values()
        for option in options
        if getattr(before, option.name) != getattr(after, option.name)
    )


def without_effect(asked: RunPlan, runs: RunPlan) -> Iterator[PlanOption]:
    """The options that were asked for, and not by default, and change nothing in the plan with
    nothing left open that came of it. `idle` of each says why."""
    for options in grouped_options(type(asked)).values():
        for option in options:
            given = getattr(asked, option.name) not in (option.default, False)
            if option.idle and given and not option.counts(runs):
                yield option
