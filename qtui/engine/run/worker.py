"""The child process of a run: `python -P -m qtui.engine.run.worker`.

Reads one line of JSON (qtui_core.training.run.request) from stdin, then controls such as
{"control": "pause"}. Writes the events of the run as lines (qtui_core.live.state) to the stdout
with which it started: first the header, last an End. What libraries print goes to stderr, which is
the log.

Exit codes are those of the command line. A run that was asked to stop has exit code 0. A run that a
signal ended has failed, with exit code 130. Both end within a second.

While there is nothing to report, lines `alive` show that the process works; recordings leave them
out. With the argument "behind", a run on the CPU has a lower priority than the screen; a run on a
GPU on which another process computes has it always.
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
from qtui_core.live.snapshot import End, Fault, LogMessage, PhaseBegun
from qtui_core.live.state import RunEvent, to_line
from qtui_core.training.run.request import NOT_BEGUN, NotBegun, parse_request


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
        """Does the run of a request. Returns the exit code."""
        prepared = prepare_run(parse_request(request))
        if not prepared.source.is_configuration:
            prepared.source.require_weights()  # before torch is imported, which takes long
        self._tell(prepared.header)
        for note in prepared.notes:
            self._tell(LogMessage(self._seconds, note))
        behind = prepared.header.device.kind == "cpu" and sys.argv[1:] == ["behind"]
        if behind or prepared.order.placement.shared:
            os.nice(NICENESS)  # threads of torch, which this thread starts, inherit it
        # torch reads these variables when it is imported, and CUDA when it starts.
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
            kind = NOT_BEGUN if isinstance(error, NotBegun) else kind
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
    """Does one run. Never returns."""
    run = _RunWork()
    run.child.do(run.work)


if __name__ == "__main__":
    main()
