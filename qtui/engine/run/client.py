"""The reader's end of a run: starts the child that trains, hears what it tells, and ends it.

Nothing here imports torch. A run always ends with an `End`: where the child goes away without one,
what happened is told in its place, as a `Fault` unless it was asked to go.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from qtui.engine.child_lines import ChildLines
from qtui_core.live.header import RecordingHeader
from qtui_core.live.lines import Told, from_line
from qtui_core.live.snapshot import End, Fault, PhaseBegun, Said
from qtui_core.recorded_lines import LineError
from qtui_core.training.run.request import RunRequest

WORKER: Final = (sys.executable, "-P", "-m", "qtui.engine.run.worker")


class RunClient:
    """One run in a process of its own, `child`. `log` receives what it writes on stderr."""

    def __init__(self, command: Sequence[str] = WORKER, *, log: Path | None = None) -> None:
        self.child: Final = ChildLines(command, "The run", log)
        self._seconds, self._step, self._phase = 0.0, 0, ""

    async def run(self, request: RunRequest | Mapping[str, Any]) -> AsyncGenerator[Told, None]:
        """Starts a run and gives all that it tells, an End last. Whoever stops listening ends the
        run."""
        self._seconds, self._step, self._phase = 0.0, 0, ""
        began = time.monotonic()
        try:
            async with aclosing(self.child.lines(request)) as lines:
                async for line in lines:
                    told = self._read(line)
                    if told is not None:
                        self._follow(told)
                        yield told
                    if isinstance(told, End):
                        await self.child.wait()
                        return
        except OSError as error:
            for told in self._ended_badly(f"The run could not be started: {error}."):
                yield told
            return
        # It said nothing of its end, which may be long after what it said last.
        self._seconds = max(self._seconds, time.monotonic() - began)
        if self.child.asked_to_end:
            yield End(self._seconds, "stopped")
        else:
            for told in self._ended_badly(self.child.obituary()):
                yield told

    def _read(self, line: bytes | None) -> Told | None:
        """The report in a line of the child. A line without one becomes text for the log."""
        if line is None:
            return Said(self._seconds, "A line of the run was too long and is left out.")
        try:
            return from_line(line)
        except LineError as error:
            return Said(self._seconds, f"A line of the run cannot be read: {error}")

    def _follow(self, told: Told) -> None:
        """Where the run is, in case it goes away."""
        if isinstance(told, RecordingHeader):
            return
        self._seconds = max(self._seconds, told.seconds)
        if isinstance(told, PhaseBegun):
            self._step, self._phase = told.step, told.phase

    def _ended_badly(self, sentence: str) -> tuple[Told, ...]:
        where = f" It was in the phase {self._phase!r}." if self._phase else ""
        kind = "killed" if (self.child.exit_code or 0) < 0 else "failure"
        fault = Fault(self._seconds, self._step, self._phase, kind, sentence + where)
        return fault, End(self._seconds, "failed")
