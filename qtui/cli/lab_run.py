"""An experiment without a screen, from start to end: narrated on stderr, recorded if wanted."""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from dataclasses import replace
from typing import Final

from qtui.cli.child_run import ChildRun
from qtui.ending import Ended, say
from qtui.engine.lab.client import lab_client
from qtui.engine.lab.request import LabRequest
from qtui_core.dataclass import dataclass
from qtui_core.errors import error_of
from qtui_core.files import Target
from qtui_core.lab.catalog import cost_text
from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import JobDone, LabBegun, LabEvent, LabFault, LabResult, StepProgress
from qtui_core.quantities import plural
from qtui_core.recorded_lines import Recorder

#: At least so many seconds lie between two lines about steps.
_PAUSE: Final = 2.0


@dataclass(frozen=True)
class LabOutcome:
    """How an experiment ended: what was found, the exit code of the command, and whether Ctrl-C
    ended it."""

    result: LabResult
    exit_code: int
    interrupted: bool


def run_to_end(request: LabRequest, record: Target | None, *, debug: bool = False) -> LabOutcome:
    """Runs an experiment in a child process. `debug` shows the last lines of the child's stderr if
    it fails.

    Raises QtuiError (UsageError, ModelError) where it ended before its first result, and
    KeyboardInterrupt where it was interrupted before that. Where a signal asks the program to end,
    says what is kept before it raises Ended.
    """
    run = _ExperimentRun(request, record)
    try:
        return asyncio.run(run.to_end(debug))
    except Ended as ended:
        say(f"qtui: {run.kept_after(ended.signum)}")
        raise


class _ExperimentRun:
    def __init__(self, request: LabRequest, record: Target | None) -> None:
        self._request = request
        self._record = record
        self._client = lab_client()
        self._run = ChildRun[LabEvent](
            self._client.child, None if record is None else Recorder(record, LAB_LINES.to_line)
        )
        self._begun: LabBegun | None = None
        self._result: LabResult | None = None
        self._fault = ""
        self._done = 0
        self._said = 0.0

    async def to_end(self, debug: bool) -> LabOutcome:
        await self._run.follow(
            self._client.run(self._request), self._hear, self._failed, debug=debug
        )
        result = self._result
        code = self._run.exit_code(result is not None and not self._failed())
        if result is None:
            if self._run.interrupted:
                raise KeyboardInterrupt
            raise error_of(self._fault, code)
        return LabOutcome(result, code, self._run.interrupted)

    def kept_after(self, signum: int) -> str:
        """What is kept of a run that a signal ended, and how to go on, as a sentence."""
        name = self._request.experiment
        said = f"{signal.Signals(signum).name} ended the experiment {name}"
        if self._begun is None:
            return f"{said} before it began."
        said += f" after {self._done} of {plural(len(self._begun.jobs), 'part')}"
        if self._record is None or self._run.recording.incomplete:
            return f"{said}, and they were not recorded: --record FILE would keep them."
        file = "FILE" if self._record.special else shlex.quote(self._record.name)
        return f"{said}, which are recorded: qtui lab {name} --resume {file} goes on."

    def _failed(self) -> bool:
        return self._result is None or self._result.ended == "failed"

    def _hear(self, event: LabEvent) -> bool:
        """A recording begins with what is to be run."""
        if isinstance(event, LabBegun):
            self._begun = event
            parts = plural(len(event.jobs), "part")
            self._run.say(f"{event.experiment}: {parts}, {cost_text(event.seconds)}.")
        elif isinstance(event, JobDone):
            self._done += 1
            of = len(self._begun.jobs) if self._begun is not None else self._done
            how = event.fault or f"done in {event.seconds:.1f} s"
            self._run.say(f"{event.job} ({self._done} of {of}): {how}")
        elif isinstance(event, StepProgress):
            now = time.monotonic()
            if now - self._said >= _PAUSE:
                self._said = now
                value = "" if event.value is None else f", {event.value:.4g}"
                self._run.say(f"{event.job}: step {event.step:,} of {event.steps:,}{value}")
        elif isinstance(event, LabResult):
            self._result = event
            if event.fault:
                self._run.say_once(event.fault)
        elif isinstance(event, LabFault):
            self._fault = event.text
            if self._result is not None:
                self._result = replace(self._result, ended="failed", fault=event.text)
                self._run.say_once(event.text)
        return self._begun is not None
