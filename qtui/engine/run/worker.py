"""The child process of a run: `python -P -m qtui.engine.run.worker`.

Reads one line of JSON (qtui_core.training.run.request) from stdin, then controls, such as
{"control": "pause"}. Writes what the run tells, a line each (qtui_core.live.lines), to what was
stdout when it started: first the header, last an End. What libraries print goes to stderr, which
is the log.
Ends with the exit codes of the command line; a run that was told to stop is done, one that a signal
ended has failed, since nobody who watches it sends one, and ends with 130. A second after either at
most it is gone.

Where there is nothing to tell for a while, lines that say `alive` do not let the reader wonder;
recordings have none.

With "behind" as its argument it is for an app: a run on the CPU then gives way to the screen.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from qtui.engine.child_process import ChildProcess
from qtui.engine.run.prepared_run import prepare_run
from qtui.engine.worker import NICENESS
from qtui_core.errors import ModelError
from qtui_core.live.lines import RunEvent, to_line
from qtui_core.live.snapshot import End, Fault, PhaseBegun, Said
from qtui_core.training.run.request import parse_request


class _RunWork:
    def __init__(self) -> None:
        self.child = ChildProcess("The run", self._last)
        self._began = time.perf_counter()
        self._begun = PhaseBegun(0.0, 0, "")

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _tell(self, event: RunEvent) -> None:
        if isinstance(event, PhaseBegun):
            self._begun = event
        self.child.tell(to_line(event))

    def work(self, request: bytes) -> int:
        """From the request to the last step; returns the exit code."""
        prepared = prepare_run(parse_request(request))
        self._tell(prepared.header)
        for note in prepared.notes:
            self._tell(Said(self._seconds, note))
        if prepared.header.device.kind == "cpu" and sys.argv[1:] == ["behind"]:
            os.nice(NICENESS)  # threads of torch are started by this one and take after it
        # torch reads them when it is imported, and CUDA when it starts.
        os.environ.update(prepared.environment)
        self._tell(PhaseBegun(self._seconds, 0, "import"))
        from qtui_core.training.run.live import run_to_end

        order, advice = prepared.order, prepared.advice
        with prepared.source as source:
            return run_to_end(source, order, self._tell, self.child.controls, self._began, advice)

    def _last(self, ended: str, why: str, error: Exception | None) -> Iterator[str]:
        step, phase = self._begun.step, self._begun.phase
        if why:
            kind = "model" if isinstance(error, ModelError) else "failure"
            yield to_line(Fault(self._seconds, 0, "", kind, why))
        elif ended == "stopped" and self.child.signalled is not None:
            where = f"in step {step}, {phase}" if step else "before its first step"
            why = (
                f"{self.child.signalled.name} ended the run {where}: something besides qtui sent "
                "it, such as `kill` or the limit of a batch system."
            )
            yield to_line(Fault(self._seconds, step, phase, "killed", why))
            ended = "failed"
        yield to_line(End(self._seconds, ended))


def main() -> None:
    """One run. Never returns."""
    run = _RunWork()
    run.child.do(run.work)


if __name__ == "__main__":
    main()
