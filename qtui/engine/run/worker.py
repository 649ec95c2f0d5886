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
import signal
import sys
import threading
import time
import traceback
from typing import BinaryIO, Final, NoReturn

from qtui.engine.line_sink import LineSink, control_of, end_soon
from qtui.engine.run.prepared_run import prepare_run
from qtui.engine.worker import NICENESS, take_over_streams
from qtui_core.errors import ModelError, QtuiError
from qtui_core.live.lines import Told, to_line
from qtui_core.live.snapshot import End, Fault, PhaseBegun, Said
from qtui_core.training.run.controls import Controls, Stopped
from qtui_core.training.run.request import parse_request

INTERRUPTED: Final = 130
_FAILED: Final = 1
#: How long a run that was asked to stop may take to the next phase before it is left where it is.
_PATIENCE: Final = 0.6
#: And how long its last line may take.
_GRACE: Final = 0.2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Child:
    """Tells of one run, and ends the process once."""

    def __init__(self, sink: LineSink) -> None:
        self.began = time.perf_counter()
        self.controls = Controls()
        self.code = 0
        self.sink = sink
        self._begun = PhaseBegun(0.0, 0, "")
        self._fault: Fault | None = None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def tell(self, told: Told) -> None:
        if isinstance(told, PhaseBegun):
            self._begun = told
        self.sink.tell(to_line(told))

    def end(self, reason: str, code: int) -> NoReturn:
        """The last line, and the end of the process."""
        last: list[Told] = [End(self.seconds, reason if self._fault is None else "failed")]
        if self._fault is not None:
            last.insert(0, self._fault)
        self.sink.end(map(to_line, last), code)

    def stop(self, code: int, signum: int | None = None) -> None:
        """From any thread: the run ends at its next phase, or soon where that is far. `signum` is
        the signal that asked for it."""
        if signum is not None and not self.controls.stopping:
            step, phase = self._begun.step, self._begun.phase
            where = f"in step {step}, {phase}" if step else "before its first step"
            text = (
                f"{signal.Signals(signum).name} ended the run {where}: something besides qtui sent "
                "it, such as `kill` or the limit of a batch system."
            )
            self._fault = Fault(self.seconds, step, phase, "killed", text)
        self.code = code
        self.controls.say("stop")
        end_soon(code, _PATIENCE + _GRACE)
        time.sleep(_PATIENCE)
        self.end("stopped", code)


def main() -> None:
    """One run. Never returns."""
    source, sink = take_over_streams()
    # Signals are waited for by a thread of their own: the main thread may be inside a kernel.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = Child(LineSink(sink))
    threading.Thread(target=_obey_signals, args=(child,), daemon=True).start()
    line = source.readline()
    threading.Thread(target=_obey_controls, args=(child, source), daemon=True).start()
    try:
        code = _run(child, line)
    except Stopped:
        child.end("stopped", child.code)
    except Exception as error:
        # Any other error must be reported too; otherwise the reader waits for an end.
        traceback.print_exc()
        text = f"The run failed: {type(error).__name__}: {error}. The log has the rest."
        child.tell(Fault(child.seconds, 0, "", "failure", text))
        code = _FAILED
    child.end("failed" if code else "done", code)


def _run(child: Child, line: bytes) -> int:
    """Everything from the request to the last step; returns the exit code."""
    try:
        prepared = prepare_run(parse_request(line))
    except QtuiError as error:
        kind = "model" if isinstance(error, ModelError) else "failure"
        child.tell(Fault(child.seconds, 0, "", kind, str(error)))
        return error.exit_code
    child.tell(prepared.header)
    for note in prepared.notes:
        child.tell(Said(child.seconds, note))
    if prepared.header.device.kind == "cpu" and sys.argv[1:] == ["behind"]:
        os.nice(NICENESS)  # threads of torch are started by this one and take after it
    # torch reads them when it is imported, and CUDA when it starts.
    os.environ.update(prepared.environment)
    child.tell(PhaseBegun(child.seconds, 0, "import"))
    from qtui_core.training.run.live import conduct

    order, advice = prepared.order, prepared.advice
    with prepared.source as source:
        return conduct(source, order, child.tell, child.controls, child.began, advice)


def _obey_signals(child: Child) -> None:
    child.stop(INTERRUPTED, signal.sigwait(_SIGNALS))


def _obey_controls(child: Child, source: BinaryIO) -> None:
    """Waits until stdin ends, which means stop: the process that started the run is gone. If it
    ended before the first report, the request was piped in, and no controls were to come."""
    while line := source.readline():
        control = control_of(line)
        if control == "stop":
            child.stop(0)
        elif control is not None:
            child.controls.say(control)
    if child.sink.told:
        child.stop(0)


if __name__ == "__main__":
    main()
