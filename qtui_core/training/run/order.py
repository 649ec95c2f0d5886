"""The order of a run: what it does once everything is resolved. Standard library only."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.run.placement import Placement


@dataclass(frozen=True)
class Order:
    """What to run: nothing of the plan is left open, and this machine can run it.

    Attributes:
        plan, placement: what to run, and where.
        steps: how many; None has no end.
        data: path of a text file; None is the built-in text.
        text: a prompt on which adapters are compared, or None.
        ranges: whether the last step reports where its numbers lie.
    """

    plan: RunPlan
    placement: Placement
    steps: int | None = None
    data: str | None = None
    text: str | None = None
    ranges: bool = False
