"""Steps of a model in a child process. A run always ends with an `End`: where the child goes away
without one, what happened is told in its place, as a `Fault` unless it was asked to go."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from qtui.engine.child_lines import RunClient
from qtui_core.live.header import RecordingHeader
from qtui_core.live.lines import RUN_LINES, Told
from qtui_core.live.snapshot import End, Fault, PhaseBegun, Said

WORKER: Final = (sys.executable, "-P", "-m", "qtui.engine.run.worker")


def run_client(command: Sequence[str] = WORKER, *, log: Path | None = None) -> RunClient[Told]:
    """Runs what a RunRequest, or a mapping of its fields, asks for."""
    return RunClient(command, "run", RUN_LINES, _StepsHeard, log)


class _StepsHeard:
    """Where a run is, in case it goes away."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds, self._step, self._phase = 0.0, 0, ""

    def complaint(self, why: str) -> Told:
        return Said(self._seconds, why)

    def hear(self, told: Told) -> bool:
        if not isinstance(told, RecordingHeader):
            self._seconds = max(self._seconds, told.seconds)
        if isinstance(told, PhaseBegun):
            self._step, self._phase = told.step, told.phase
        return isinstance(told, End)

    def end(self, why: str, *, killed: bool) -> Iterator[Told]:
        # It said nothing of its end, which may be long after what it said last.
        seconds = max(self._seconds, time.monotonic() - self._began)
        if why:
            where = f" It was in the phase {self._phase!r}." if self._phase else ""
            kind = "killed" if killed else "failure"
            yield Fault(seconds, self._step, self._phase, kind, why + where)
        yield End(seconds, "failed" if why else "stopped")
