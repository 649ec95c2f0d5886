"""What a run is to do, once it is known what, where and how. Standard library only."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.run.placement import Placement


@dataclass(frozen=True)
class Order:
    """What is to be run: nothing of the plan is left open, and this machine can run it.

    Attributes:
        plan, placement: what, and where.
        steps: how many; None has no end.
        data: path of a text file; None is the built-in text.
        text: a prompt to compare adapters on, or None.
        ranges: whether the last step tells where its numbers lie.
    """

    plan: RunPlan
    placement: Placement
    steps: int | None = None
    data: str | None = None
    text: str | None = None
    ranges: bool = False
