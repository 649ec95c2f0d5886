"""What the child of an experiment is asked."""

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
        experiment: its name.
        settings: those that were given; the others have their defaults.
        model: as `qtui MODEL` takes it.
        done: jobs of an earlier run of the same settings, which are not run again.
        processes: 1 or 2; None takes two where there are cores and work for them.
        behind: whether it gives way to the screen.
    """

    experiment: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "demo"
    done: tuple[JobDone, ...] = ()
    processes: int | None = None
    behind: bool = False
