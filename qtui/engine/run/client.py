"""Steps of a model in a child process. A run always ends with an `End`. If the child ends without
one, it is added, after a `Fault` that says what happened unless the child was asked to end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from qtui.engine.child_lines import RunClient
from qtui_core.live.snapshot import End, Fault, LogMessage, PhaseBegun, RecordingHeader
from qtui_core.live.state import RUN_LINES, RunEvent

WORKER: Final = (sys.executable, "-P", "-m", "qtui.engine.run.worker")


def run_client(command: Sequence[str] = WORKER, *, log: Path | None = None) -> RunClient[RunEvent]:
    """Runs what a RunRequest, or a mapping of its fields, asks for."""
    return RunClient(command, "run", RUN_LINES, _StepListener, log)


class _StepListener:
    """The step and phase of a run, for the sentence about a child that ends in the middle."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds, self._step, self._phase = 0.0, 0, ""

    def complaint(self, why: str) -> RunEvent:
        return LogMessage(self._seconds, why)

    def hear(self, event: RunEvent) -> bool:
        if not isinstance(event, RecordingHeader):
            self._seconds = max(self._seconds, event.seconds)
        if isinstance(event, PhaseBegun):
            self._step, self._phase = event.step, event.phase
        return isinstance(event, End)

    def end(self, why: str, *, killed: bool) -> Iterator[RunEvent]:
        # Its end may come long after its last message.
        seconds = max(self._seconds, time.monotonic() - self._began)
        if why:
            where = f" It was in the phase {self._phase!r}." if self._phase else ""
            kind = "killed" if killed else "failure"
            yield Fault(seconds, self._step, self._phase, kind, why + where)
        yield End(seconds, "failed" if why else "stopped")
