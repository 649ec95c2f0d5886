"""Runs the experiments of the Numerics panel, and plays recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qtui.engine.lab.client import WORKER, lab_client
from qtui.engine.lab.request import LabRequest
from qtui.screen.run_process import RunProcess
from qtui.tui.config import log_file
from qtui.tui.panels.numerics.lab_run import LabPhase, LabRun
from qtui.tui.panels.numerics.recordings import kept_of, lab_keeper, lab_recordings
from qtui_core.errors import UsageError
from qtui_core.lab.catalog import experiment_named
from qtui_core.lab.recording import LabRecording, parse_lab_recording, read_lab_recording
from qtui_core.lab.results import JobDone, LabResult
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui.tui.panels.numerics.panel import NumericsPanel

RUN, RECORDING, WARMING = "run", "recording", "warming"
_STEP: Final = b'"told":"lab step"'
#: The most recordings of earlier sessions that are listed for an experiment.
_EARLIER: Final = 8


class ExperimentRuns:
    """Starts experiments one at a time, reads their messages and controls them. `command` starts
    the child process."""

    def __init__(self, panel: NumericsPanel, command: Sequence[str] = WORKER) -> None:
        self._panel = panel
        self.process = RunProcess(
            panel, lambda: lab_client(command, log=log_file().with_name("lab.log"))
        )
        self.live: LabRun | None = None
        """The run that is under way; None without one."""
        self._listed: set[str] = set()

    def tick(self) -> None:
        """Plays recordings on, and draws the panel if it is shown and there is news."""
        for run in self._panel.shown.kept:
            if run.phase is LabPhase.PLAYING and not run.paused:
                run.play_on()
                self.process.news = True
        if self.process.tick():
            self._panel.draw()

    def warm(self) -> None:
        """Starts the process ahead, so that the next run begins at once."""
        if self._panel.qtui.looks_ahead and self.process.looked_at:
            self._panel.do(self.process.warm, WARMING)

    # Running

    def start(self, done: Sequence[JobDone] = (), model: str = "") -> None:
        """Runs the chosen experiment with its settings, on the app's model unless another is named;
        jobs that are `done` are not run again."""
        shown = self._panel.shown
        run = LabRun(len(shown.kept) + 1, shown.experiment, shown.settings, model or shown.model)
        shown.keep(run)
        self.live = run

        async def work() -> None:
            await self._go(run, tuple(done))

        self._panel.do(work, RUN)

    async def _go(self, run: LabRun, done: tuple[JobDone, ...]) -> None:
        request = LabRequest(run.experiment.name, run.settings, run.model, done, behind=True)
        try:
            with lab_keeper(run.experiment.name) as keeper:
                await self.process.follow(request, run, keeper, run.hear)
        finally:
            if not run.over:  # the work was cancelled
                run.phase = LabPhase.STOPPED
            self.live = None
        self._panel.draw()
        self.warm()

    def go_on(self, run: LabRun) -> None:
        """Runs the remaining jobs of a run on its own model, as another run."""
        self._panel.shown.changes[run.experiment.name] = {
            row.name: value
            for row, value in zip(run.experiment.settings, run.settings.values(), strict=True)
            if value != row.default
        }
        self.start([job for job in run.jobs.values() if not job.fault], run.model)

    def pause(self) -> None:
        """Pauses the run, or resumes it."""
        run = self.live
        if run is None or run.phase not in (LabPhase.RUNNING, LabPhase.PAUSED):
            return
        paused = run.phase is LabPhase.PAUSED
        self.process.child.control("resume" if paused else "pause")
        run.phase = LabPhase.RUNNING if paused else LabPhase.PAUSED

    def stop(self) -> None:
        """Asks the run to stop; its process is killed if it does not."""
        if self.live is not None:
            self.live.phase = LabPhase.STOPPING
            self.process.child.stop()

    # Recordings

    def open_recording(self, path: Path) -> None:
        """Plays a recording from its start, as a run of its experiment."""

        async def work() -> None:
            try:
                recording = await asyncio.to_thread(read_lab_recording, path)
                run = _run_of(recording, path)
            except UsageError as error:
                self._panel.refused(printable(str(error)))
                return
            shown = self._panel.shown
            shown.choose_named(run.experiment.name)
            run.number = len(shown.kept) + 1
            shown.keep(run)
            run.play(recording)
            self._panel.forget_refusal()
            self._panel.draw()

        self._panel.do(work, RECORDING)

    def list_earlier(self) -> None:
        """Lists the recordings of earlier sessions of the chosen experiment; reads them once."""
        shown = self._panel.shown
        name = shown.experiment.name
        if name in self._listed:
            return
        self._listed.add(name)
        known = {run.path for run in shown.kept}

        async def work() -> None:
            found = await asyncio.to_thread(_earlier, name, known)
            if found:
                shown.keep_earlier(name, found)
                self._panel.draw()

        self._panel.do(work, f"{RECORDING} {name}")


def _earlier(name: str, known: set[Path | None]) -> list[LabRun]:
    """The last recordings of an experiment, played to their ends; without those that cannot be
    read."""
    found = []
    for path in kept_of(name, lab_recordings())[-_EARLIER:]:
        if path in known:
            continue
        with suppress(UsageError, OSError):
            # Steps are nearly all lines of a recording, and are not needed once the run is over.
            lines = path.read_bytes().splitlines()
            recording = parse_lab_recording(line for line in lines if _STEP not in line)
            run = _run_of(recording, path)
            run.play(recording)
            run.play_on(to_end=True)
            run.complaint = ""
            if isinstance(run.result, LabResult):
                found.append(run)
    return found


def _run_of(recording: LabRecording, path: Path) -> LabRun:
    """The run of a recording. Raises UsageError if this version does not have the experiment or its
    settings."""
    begun = recording.begun
    experiment = experiment_named(begun.experiment)
    settings = experiment.settle(
        {name: tuple(v) if isinstance(v, list) else v for name, v in begun.settings.items()}
    )
    return LabRun(0, experiment, settings, begun.model, recorded=True, path=path)
