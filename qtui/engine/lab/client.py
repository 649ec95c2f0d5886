"""Starts the child process of an experiment, reads its messages, and ends it. Does not import
torch."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Final

from qtui.engine.child_lines import ChildLines
from qtui.engine.lab.request import LabRequest
from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import LabFault, LabResult, LabTold
from qtui_core.recorded_lines import LineError

WORKER: Final = (sys.executable, "-P", "-m", "qtui.engine.lab.worker")


class LabClient:
    """Runs one experiment in a process of its own, `child`, which takes the controls pause, resume
    and stop. Its stderr is written to `log`."""

    def __init__(self, command: Sequence[str] = WORKER, *, log: Path | None = None) -> None:
        self.child: Final = ChildLines(command, "The experiment", log)

    async def run(self, request: LabRequest) -> AsyncGenerator[LabTold, None]:
        """Starts the experiment and yields its messages. The last is a LabResult with `ended` set,
        or a LabFault if the experiment ended before its first result. Closing the generator ends
        the experiment."""
        last: LabResult | None = None
        try:
            async with aclosing(self.child.lines(request)) as lines:
                async for line in lines:
                    told = self._read(line)
                    if isinstance(told, LabResult):
                        last = told
                    if told is not None:
                        yield told
                    if isinstance(told, LabFault) or (last is not None and last.ended):
                        await self.child.wait()
                        return
        except OSError as error:
            yield LabFault(f"The experiment could not be started: {error}.")
            return
        if last is None:
            stopped = "The experiment was stopped before its first result."
            yield LabFault(stopped if self.child.asked_to_end else self.child.obituary())
        elif self.child.asked_to_end:
            yield replace(last, ended="stopped")
        else:
            yield replace(last, ended="failed", fault=self.child.obituary())

    def _read(self, line: bytes | None) -> LabTold | None:
        """The message in a line of the child; None if the line cannot be read, which is logged."""
        try:
            return None if line is None else LAB_LINES.from_line(line)
        except LineError as error:
            self.child.stderr_tail.append(f"A line of the experiment cannot be read: {error}")
            return None
