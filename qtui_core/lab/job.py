"""A part of an experiment that can run in either process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtui_core.dataclass import dataclass

#: `see(step, steps, value)` reports progress, and raises if the run was stopped.
See = Callable[[int, int, float | None], None]


@dataclass(frozen=True)
class Job:
    """A part of an experiment.

    Attributes:
        key: its name within the experiment, also in recordings.
        run: does the work, and reports through the `see` that it is given.
        outcome: the type that `run` returns, for the codec.
        cost: about how many seconds of one thread it takes; the most expensive job starts first.
    """

    key: str
    run: Callable[[See], Any]
    outcome: Any
    cost: float
