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

import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import BinaryIO, Final

from qtui.engine.run.prepared_run import prepare_run
from qtui.engine.waiting import PULSE_SECONDS
from qtui.engine.worker import NICENESS, take_over_streams
from qtui_core.errors import ModelError, QtuiError
from qtui_core.live.lines import Told, to_line
from qtui_core.live.snapshot import End, Fault, PhaseBegun, Said
from qtui_core.training.run.controls import CONTROLS, Control, Controls, Stopped
from qtui_core.training.run.request import parse_request

INTERRUPTED: Final = 130
_FAILED: Final = 1
#: How long a run that was asked to stop may take to the next phase before it is left where it is.
_PATIENCE: Final = 0.6
#: And how long its last line may take.
_GRACE: Final = 0.2
#: A line of a kind that readers of recordings leave out.
ALIVE: Final = b'{"told":"alive"}\n'
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Child:
    """Tells of one run, and ends the process once."""

    def __init__(self, stream: BinaryIO) -> None:
        self.began = time.perf_counter()
        self.controls = Controls()
        self.told = False
        self.code = 0
        self._begun = PhaseBegun(0.0, 0, "")
        self._fault: Fault | None = None
        self._stream = stream
        self._lock = threading.Lock()
        self._wrote = time.monotonic()

    def beat(self) -> None:
        """For ever: a sign of life where nothing was told for a while."""
        while True:
            time.sleep(PULSE_SECONDS)
            with self._lock:
                if time.monotonic() - self._wrote > PULSE_SECONDS:
                    self._write(ALIVE)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def tell(self, told: Told) -> None:
        """Writes a line; without a reader there is nobody to run for."""
        if isinstance(told, PhaseBegun):
            self._begun = told
        line = to_line(told).encode() + b"\n"
        self.told = True
        with self._lock:
            self._write(line)

    def _write(self, line: bytes) -> None:
        self._wrote = time.monotonic()
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            os._exit(_FAILED)

    def end(self, reason: str, code: int) -> None:
        """The last line, and the end of the process, whatever its threads are at. Memory of a GPU
        is given back with it."""
        with self._lock:
            if self._fault is not None:
                self._write(to_line(self._fault).encode() + b"\n")
                reason = "failed"
            self._write(to_line(End(self.seconds, reason)).encode() + b"\n")
            os._exit(code)

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
        # Nor does it wait for a reader that does not read.
        last = threading.Timer(_PATIENCE + _GRACE, os._exit, (code,))
        last.daemon = True
        last.start()
        time.sleep(_PATIENCE)
        self.end("stopped", code)


def main() -> None:
    """One run. Never returns."""
    source, sink = take_over_streams()
    # Signals are waited for by a thread of their own: the main thread may be inside a kernel.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = Child(sink)
    threading.Thread(target=_obey_signals, args=(child,), daemon=True).start()
    threading.Thread(target=child.beat, name="pulse", daemon=True).start()
    line = source.readline()
    threading.Thread(target=_obey_controls, args=(child, source), daemon=True).start()
    try:
        code = _run(child, line)
    except Stopped:
        child.end("stopped", child.code)
    except Exception as error:
        # Whatever else it is has to be told too, or who watches waits for an end.
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
    """Until stdin ends, which means stop: who started the run is gone. Where it ended before
    anything was told, the request was piped in and nobody meant to say more."""
    while line := source.readline():
        control = _control(line)
        if control is None:
            print(f"run: {line!r:.80} is no control", file=sys.stderr, flush=True)
        elif control == "stop":
            child.stop(0)
        else:
            child.controls.say(control)
    if child.told:
        child.stop(0)


def _control(line: bytes) -> Control | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    control = said.get("control") if isinstance(said, dict) else None
    return control if control in CONTROLS else None


if __name__ == "__main__":
    main()
