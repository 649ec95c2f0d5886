"""The request to the child process of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.lab.results import JobDone


@dataclass(frozen=True)
class LabRequest:
    """An experiment to run.

    Attributes:
        experiment: the name in the catalogue.
        settings: the settings that the user gave; the others have their defaults.
        model: a model as `qtui MODEL` takes it.
        done: finished jobs of an earlier run with the same settings, which are not run again.
        processes: 1 or 2; None takes two if there are enough cores and jobs.
        behind: whether the process has a low priority, so that the screen stays fast.
    """

    experiment: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "demo"
    done: tuple[JobDone, ...] = ()
    processes: int | None = None
    behind: bool = False
