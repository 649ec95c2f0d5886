"""An experiment in a child process. Its last message is a LabResult with `ended` set, or a LabFault
if it ended before its first result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from qtui.engine.child_lines import RunClient
from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import LabEvent, LabFault, LabResult

WORKER: Final = (sys.executable, "-P", "-m", "qtui.engine.lab.worker")


def lab_client(command: Sequence[str] = WORKER, *, log: Path | None = None) -> RunClient[LabEvent]:
    """Runs the experiment of a LabRequest, which takes the controls pause, resume and stop."""
    return RunClient(command, "experiment", LAB_LINES, _ResultListener, log)


class _ResultListener:
    """The last result of an experiment, in case it goes away."""

    def __init__(self) -> None:
        self._last: LabResult | None = None

    def complaint(self, why: str) -> None:
        return None

    def hear(self, event: LabEvent) -> bool:
        if isinstance(event, LabResult):
            self._last = event
        return isinstance(event, LabFault) or (self._last is not None and bool(self._last.ended))

    def end(self, why: str, *, killed: bool) -> Iterator[LabEvent]:
        if self._last is None:
            yield LabFault(why or "The experiment was stopped before its first result.")
        elif why:
            yield replace(self._last, ended="failed", fault=why)
        else:
            yield replace(self._last, ended="stopped")
