"""What is known of a run of an experiment: a live one, an earlier one, or a recording."""

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
    LabEvent,
    LabFault,
    LabLine,
    LabResult,
    Picture,
    StepProgress,
)
from qtui_core.lab.settings import Value

#: The most points of a job's curve; from more, every other one is dropped.
_POINTS: Final = 2000
#: The most drawings in which a recording plays.
PLAYED: Final = 40


class LabPhase(StrEnum):
    """The state of a run. A recording is PLAYING, and then DONE, STOPPED or FAILED like its run."""

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
        number: the number of the run among those of its experiment, from 1.
        settings: all settings with their values.
        recorded: whether it was read from a file, and not run by this app.
        path: the file of its recording; None without one.
        begun, result: the latest messages of these kinds.
        jobs: the finished jobs.
        steps: running job -> (steps done, steps in all).
        courses: job -> the (step, value) points that it reported.
        fault: the sentence that says why the run failed; "" if it did not.
        left: the messages of a recording that are not played yet.
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
    left: list[LabEvent] = field(default_factory=list)
    paused: bool = False
    _each: int = 1
    _on_the_way: LabChart | None = None
    """The picture of the courses. It stays the same object until there is another step, so that a
    key that changes a setting need not draw it again."""

    @property
    def over(self) -> bool:
        return self.phase in OVER

    @property
    def failed(self) -> bool:
        """Whether the run or one of its parts failed."""
        return self.phase is LabPhase.FAILED or any(job.fault for job in self.jobs.values())

    @property
    def can_go_on(self) -> bool:
        """Whether the run ended before all its jobs were done."""
        if self.phase not in (LabPhase.STOPPED, LabPhase.FAILED) or self.begun is None:
            return False
        return any(name not in self.jobs or self.jobs[name].fault for name in self.begun.jobs)

    def hear(self, event: LabEvent) -> None:
        """Takes a message of the run."""
        if isinstance(event, LabBegun):
            self.begun = event
            if self.phase is LabPhase.STARTING:
                self.phase = LabPhase.RUNNING
        elif isinstance(event, StepProgress):
            self.steps[event.job] = event.step, event.steps
            if event.value is not None:
                self._on_the_way = None
                course = self.courses.setdefault(event.job, [])
                if course and event.step <= course[-1][0]:
                    course.clear()  # a job of several runs begins the next one
                course.append((event.step, event.value))
                if len(course) > _POINTS:
                    del course[1:-1:2]
        elif isinstance(event, JobDone):
            self.jobs[event.job] = event
            self.steps.pop(event.job, None)
        elif isinstance(event, LabResult):
            self.result = event
            if event.ended:
                self.phase, self.fault = LabPhase(event.ended), event.fault
        else:
            assert isinstance(event, LabFault)
            stopped = self.phase is LabPhase.STOPPING
            self.phase = LabPhase.STOPPED if stopped else LabPhase.FAILED
            self.fault = event.text

    def play(self, recording: LabRecording) -> None:
        """Begins to play a recording from its start."""
        self.begun, self.result, self.fault = recording.begun, None, ""
        self.complaint = recording.complaint
        self.jobs, self.steps, self.courses, self._on_the_way = {}, {}, {}, None
        self.left = list(recording.events)
        self._each = max(1, -(-len(self.left) // PLAYED))
        self.phase = LabPhase.PLAYING

    def play_on(self, *, to_end: bool = False) -> None:
        """Takes the next messages of a recording, or all that are left."""
        count = len(self.left) if to_end else self._each
        for event in self.left[:count]:
            self.hear(event)
        del self.left[:count]
        if not self.left and not self.over:
            self.phase = LabPhase.STOPPED

    @property
    def share(self) -> float:
        """The share of the run that is done, 0 to 1, by jobs and their steps."""
        count = len(self.begun.jobs) if self.begun else 0
        if not count:
            return 0.0
        steps = sum(step / steps for step, steps in self.steps.values() if steps)
        return min(1.0, (len(self.jobs) + steps) / count)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures of the findings; without findings, one of the points that jobs reported."""
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
        """The settings that differ from those of `other`, or from the usual ones, as text."""
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
