"""A run of an experiment, as far as it was told: live, kept, or read from a recording."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Final

from qtui.report.lab.document import setting_text
from qtui_core.dataclass import dataclass
from qtui_core.lab.catalog import Experiment
from qtui_core.lab.recording import LabRecording
from qtui_core.lab.results import (
    JobDone,
    LabBegun,
    LabChart,
    LabFault,
    LabLine,
    LabResult,
    LabTold,
    Picture,
    StepSeen,
)
from qtui_core.lab.settings import Value

#: Points of a job that are kept to be drawn; of more, every other one.
_POINTS: Final = 2000
#: A recording plays in so many pictures at most.
PLAYED: Final = 40


class LabPhase(StrEnum):
    """Where a run is. A recording `plays`, and is `done`, `stopped` or `failed` as it was then."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    PLAYING = "playing"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


OVER: Final = (LabPhase.DONE, LabPhase.STOPPED, LabPhase.FAILED)


@dataclass
class LabRun:
    """What is known of a run.

    Attributes:
        number: counts the runs of an experiment, from 1.
        settings: every one of them.
        recorded: whether it comes from a file, and not from a process of this app.
        path: of its recording; None where there is none.
        begun, result: as they were told last.
        jobs: those that are done.
        steps: of each job that runs, how many steps are done, and of how many.
        courses: of each job, (step, value) of what it said on its way.
        fault: why it failed, as a sentence.
        left: what a recording is still to tell.
        paused: whether a recording that plays is paused.
    """

    number: int
    experiment: Experiment
    settings: dict[str, Value]
    model: str
    phase: LabPhase = LabPhase.STARTING
    recorded: bool = False
    path: Path | None = None
    complaint: str = ""
    begun: LabBegun | None = None
    result: LabResult | None = None
    jobs: dict[str, JobDone] = field(default_factory=dict)
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    courses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    fault: str = ""
    left: list[LabTold] = field(default_factory=list)
    paused: bool = False
    _each: int = 1
    _on_the_way: LabChart | None = None
    """The picture of the courses; the same object until there is another step, so that a key which
    changes a setting need not draw it anew."""

    @property
    def over(self) -> bool:
        return self.phase in OVER

    @property
    def can_go_on(self) -> bool:
        """Whether it ended before all of its jobs were done."""
        if self.phase not in (LabPhase.STOPPED, LabPhase.FAILED) or self.begun is None:
            return False
        return any(name not in self.jobs or self.jobs[name].fault for name in self.begun.jobs)

    def hear(self, told: LabTold) -> None:
        """Something more is known."""
        if isinstance(told, LabBegun):
            self.begun = told
            if self.phase is LabPhase.STARTING:
                self.phase = LabPhase.RUNNING
        elif isinstance(told, StepSeen):
            self.steps[told.job] = told.step, told.steps
            if told.value is not None:
                self._on_the_way = None
                course = self.courses.setdefault(told.job, [])
                if course and told.step <= course[-1][0]:
                    course.clear()  # the next of several runs of a job
                course.append((told.step, told.value))
                if len(course) > _POINTS:
                    del course[1:-1:2]
        elif isinstance(told, JobDone):
            self.jobs[told.job] = told
            self.steps.pop(told.job, None)
        elif isinstance(told, LabResult):
            self.result = told
            if told.ended:
                self.phase, self.fault = LabPhase(told.ended), told.fault
        else:
            assert isinstance(told, LabFault)
            stopped = self.phase is LabPhase.STOPPING
            self.phase = LabPhase.STOPPED if stopped else LabPhase.FAILED
            self.fault = told.text

    def play(self, recording: LabRecording) -> None:
        """Begins to tell a recording from its start."""
        self.begun, self.result, self.fault = recording.begun, None, ""
        self.complaint = recording.complaint
        self.jobs, self.steps, self.courses, self._on_the_way = {}, {}, {}, None
        self.left = list(recording.told)
        self._each = max(1, -(-len(self.left) // PLAYED))
        self.phase = LabPhase.PLAYING

    def play_on(self, *, to_end: bool = False) -> None:
        """The next part of a recording, or all of the rest."""
        count = len(self.left) if to_end else self._each
        for told in self.left[:count]:
            self.hear(told)
        del self.left[:count]
        if not self.left and not self.over:
            self.phase = LabPhase.STOPPED

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1, by jobs and their steps."""
        count = len(self.begun.jobs) if self.begun else 0
        if not count:
            return 0.0
        steps = sum(step / steps for step, steps in self.steps.values() if steps)
        return min(1.0, (len(self.jobs) + steps) / count)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Those of its findings; as long as there are none, what its jobs say on their way."""
        found = self.result.findings.pictures if self.result else ()
        if found or not self.courses:
            return found
        if self._on_the_way is None:
            lines = tuple(
                LabLine(job, tuple(v for _, v in course), tuple(float(s) for s, _ in course))
                for job, course in self.courses.items()
            )
            title = "on their way: what each part says, step by step"
            self._on_the_way = LabChart(title, "step", "", lines)
        return (self._on_the_way,)

    def differing(self, other: LabRun | None = None) -> str:
        """Its settings that are not those of another run, or not the usual ones, in words."""
        rows = {row.name: row for row in self.experiment.settings}
        found = []
        for name, value in self.settings.items():
            row = rows.get(name)
            usual = other.settings.get(name) if other else row.default if row else None
            if value != usual:
                found.append(f"{name} {setting_text(row, value)}")
        if other is not None and self.model != other.model:
            found.append(self.model)
        return ", ".join(found)
