"""The child's side of a process that does one piece of work and writes lines about it: its streams,
signals and controls, signs of life, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final, NoReturn

from qtui.engine.waiting import LAST_STEP_SECONDS, PULSE_SECONDS
from qtui.engine.worker import take_over_streams
from qtui_core.errors import QtuiError, memory_ran_out
from qtui_core.telemetry.machine import more_memory
from qtui_core.training.run.request import CONTROLS, Control, Controls, Stopped

#: The sign of life: a line that readers of recordings leave out.
ALIVE: Final = b'{"told":"alive"}\n'
#: Sent before a request: the child imports its libraries.
WARM: Final = b'{"control": "warm"}'
#: Exit codes of work that failed or that nobody reads, and of work that a signal ended.
_FAILED: Final = 1
_INTERRUPTED: Final = 130
#: The most seconds from a request to stop to the end of the process.
_MOST: Final = 0.8
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

#: Makes the last lines. Its arguments are how the work ended ("done", "failed" or "stopped"), a
#: sentence that says why it failed (empty if it did not fail, or if a line has said so), and the
#: error if there is one.
Last = Callable[[str, str, Exception | None], Iterable[str]]


class ChildProcess:
    """This process. `who` begins the sentences about it.

    Attributes:
        controls: the received controls, which the work looks at.
        obey: is called with each control except "stop", for code that does not look at `controls`.
        signalled: the signal that ended the work; None if none did.
    """

    def __init__(self, who: str, last: Last) -> None:
        self._who, self._last = who, last
        self._source, sink = take_over_streams()
        # A thread of its own waits for signals, because the main thread may be inside a kernel.
        # Threads that are started later inherit the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._sink = LineSink(sink)
        self._ending = threading.Lock()
        self._code = 0
        self.tell: Final = self._sink.tell
        self.controls: Final = Controls()
        self.obey: Callable[[Control], object] = lambda control: None
        self.signalled: signal.Signals | None = None

    def do(self, work: Callable[[bytes], int], warm: Callable[[], None] = lambda: None) -> NoReturn:
        """Reads the request, calls `work` with it, and ends the process with the exit code that
        `work` returns. `warm` imports the libraries, if the parent asks for it before the
        request."""
        threading.Thread(target=self._obey_signals, daemon=True).start()
        line = self._source.readline()
        if line.strip() == WARM:
            warm()
            line = self._source.readline() or os._exit(0)
        threading.Thread(target=self._obey_controls, daemon=True).start()
        try:
            code = work(line)
        except Stopped:
            self._end("stopped", self._code)
        except QtuiError as error:
            self._end("failed", error.exit_code, str(error), error)
        except Exception as error:
            # Unexpected errors are reported too; otherwise the reader would wait for an end.
            traceback.print_exc()
            why = f"{self._who} failed: {type(error).__name__}: {error}. The log has the rest."
            if memory_ran_out(error):
                why = f"{self._who} ran out of memory. {more_memory()}"
            self._end("failed", _FAILED, why, error)
        self._end("failed" if code else "done", code)

    def _end(
        self, ended: str, code: int, why: str = "", error: Exception | None = None
    ) -> NoReturn:
        """Writes the last lines and ends the process. The first thread that calls it wins."""
        with self._ending:
            self._sink.end(list(self._last(ended, why, error)), code)

    def _stop(self, code: int) -> NoReturn:
        """Stops the work at its next step or phase, or after a short time if that is far away."""
        self._code = code
        self.controls.say("stop")
        timer = threading.Timer(_MOST, os._exit, (code,))
        timer.daemon = True
        timer.start()
        time.sleep(LAST_STEP_SECONDS)
        self._end("stopped", code)

    def _obey_signals(self) -> None:
        number = signal.sigwait(_SIGNALS)
        if not self.controls.stopping:
            self.signalled = signal.Signals(number)
        self._stop(_INTERRUPTED)

    def _obey_controls(self) -> None:
        """Obeys controls until stdin ends. That means stop, because the parent is gone; but if it
        ended before this process wrote a line, the request was piped in, and there are none."""
        while line := self._source.readline():
            control = control_of(line)
            if control == "stop":
                self._stop(0)
            elif control is not None:
                self.controls.say(control)
                self.obey(control)
        if self._sink.wrote:
            self._stop(0)


class LineSink:
    """Writes lines from any thread, and signs of life. If nobody reads them any more, the process
    ends. `wrote` says whether any line other than a sign of life was written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._wrote = time.monotonic()
        self.wrote = False
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def tell(self, line: str) -> None:
        """Writes a line; `line` has no line break."""
        with self._lock:
            self._put(line)

    def end(self, lines: Iterable[str], code: int) -> NoReturn:
        """Writes the last lines and ends the process, whatever its threads are doing. GPU memory is
        freed with it."""
        with self._lock:
            for line in lines:
                self._put(line)
            os._exit(code)

    def _put(self, line: str) -> None:
        self.wrote = True
        self._write(line.encode() + b"\n")

    def _write(self, line: bytes) -> None:
        self._wrote = time.monotonic()
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            os._exit(_FAILED)

    def _beat(self) -> None:
        """Writes a sign of life whenever nothing was written for a while. Never returns."""
        while True:
            time.sleep(PULSE_SECONDS)
            with self._lock:
                if time.monotonic() - self._wrote > PULSE_SECONDS:
                    self._write(ALIVE)


def control_of(line: bytes) -> Control | None:
    """The control in a line such as {"control": "pause"}; None for another line, which is
    logged."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    control = said.get("control") if isinstance(said, dict) else None
    if control in CONTROLS:
        return control
    print(f"{line!r:.80} is no control", file=sys.stderr, flush=True)
    return None
