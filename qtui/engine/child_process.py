"""The child's end of a process that does one piece of work and tells lines of it: its streams, the
signals and controls that it obeys, signs of life, and one end."""

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
from qtui_core.errors import QtuiError
from qtui_core.training.run.controls import CONTROLS, Control, Controls, Stopped

#: A line of a kind that readers of recordings leave out.
ALIVE: Final = b'{"told":"alive"}\n'
#: In place of a request: import what every request needs.
WARM: Final = b'{"control": "warm"}'
#: Exit codes of work that failed, or that nobody reads, and of work that a signal ended.
_FAILED: Final = 1
_INTERRUPTED: Final = 130
#: Seconds after which it is gone once it is told to stop, whatever it waits for.
_MOST: Final = 0.8
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

#: Makes the last lines, of how the work ended ("done", "failed" or "stopped"), of the sentence on
#: why it failed, empty where it did not or has told that, and of the error in that case.
Last = Callable[[str, str, Exception | None], Iterable[str]]


class ChildProcess:
    """This process. `who` begins the sentences about it.

    Attributes:
        controls: what it was told.
        obey: gets each control but "stop" besides, for what does not see `controls`.
        signalled: the signal that ended it, if one did.
    """

    def __init__(self, who: str, last: Last) -> None:
        self._who, self._last = who, last
        self._source, sink = take_over_streams()
        # Signals are waited for by a thread of their own: the main thread may be inside a kernel.
        # Threads that are started later inherit this.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._sink = LineSink(sink)
        self._ending = threading.Lock()
        self._code = 0
        self.tell: Final = self._sink.tell
        self.controls: Final = Controls()
        self.obey: Callable[[Control], object] = lambda control: None
        self.signalled: signal.Signals | None = None

    def do(self, work: Callable[[bytes], int], warm: Callable[[], None] = lambda: None) -> NoReturn:
        """Reads the request, does the work, which returns an exit code, and ends the process.
        `warm` imports what every request needs, where the reader wants that done ahead."""
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
            # Any other error must be told too; otherwise the reader waits for an end.
            traceback.print_exc()
            why = f"{self._who} failed: {type(error).__name__}: {error}. The log has the rest."
            self._end("failed", _FAILED, why, error)
        self._end("failed" if code else "done", code)

    def _end(
        self, ended: str, code: int, why: str = "", error: Exception | None = None
    ) -> NoReturn:
        """The last lines, and the end of the process, from whichever thread comes first."""
        with self._ending:
            self._sink.end(list(self._last(ended, why, error)), code)

    def _stop(self, code: int) -> NoReturn:
        """The work ends at its next step or phase, or soon where that is far."""
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
        """Until stdin ends, which means stop: the process that started the work is gone. If it
        ended before the first line, the request was piped in, and no controls were to come."""
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
    """Writes lines from any thread. Without a reader the work is useless, and the process ends.
    `wrote`: whether a line other than signs of life was written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._wrote = time.monotonic()
        self.wrote = False
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def tell(self, line: str) -> None:
        """Writes a line, which has no end yet."""
        with self._lock:
            self._put(line)

    def end(self, lines: Iterable[str], code: int) -> NoReturn:
        """Writes the last lines and ends the process, whatever its threads are at. Memory of a GPU
        is given back with it."""
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
        """Endlessly: writes a sign of life if nothing was written for a while."""
        while True:
            time.sleep(PULSE_SECONDS)
            with self._lock:
                if time.monotonic() - self._wrote > PULSE_SECONDS:
                    self._write(ALIVE)


def control_of(line: bytes) -> Control | None:
    """The control in a line like {"control": "pause"}; a line without one goes to the log."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    control = said.get("control") if isinstance(said, dict) else None
    if control in CONTROLS:
        return control
    print(f"{line!r:.80} is no control", file=sys.stderr, flush=True)
    return None
