"""A part of an experiment that can run in either process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Job:
    """A part of an experiment.

    Attributes:
        key: its name within the experiment, also in recordings.
        run: a module's function that is called with `see` and the arguments; `see(step, steps,
            value)` reports progress, and raises if the run was stopped.
        arguments: values that JSON can hold.
        outcome: the type that `run` returns, for the codec.
        cost: about how many seconds of one thread it takes; the most expensive job starts first.
    """

    key: str
    run: Callable[..., Any]
    arguments: Mapping[str, Any]
    outcome: Any
    cost: float
