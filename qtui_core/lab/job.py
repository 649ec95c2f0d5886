"""A part of an experiment that is run by itself, in whichever process is free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Job:
    """A part of an experiment.

    Attributes:
        key: names it within the experiment, in recordings too.
        run: a function of a module, which is given `see` and the arguments; `see(step, steps,
            value)` tells how far it is and raises where the run was stopped.
        arguments: what JSON has words for.
        outcome: the type that `run` returns, as the codec reads it.
        cost: seconds of one thread, about; the dearest is begun first.
    """

    key: str
    run: Callable[..., Any]
    arguments: Mapping[str, Any]
    outcome: Any
    cost: float
