"""The end of a child that tells lines: whole lines, signs of life between them, and a last word."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import BinaryIO, Final, NoReturn

from qtui.engine.waiting import PULSE_SECONDS
from qtui_core.training.run.controls import CONTROLS, Control

#: A line of a kind that readers of recordings leave out.
ALIVE: Final = b'{"told":"alive"}\n'
#: Exit code of a child whose reader is gone.
_UNREAD: Final = 1


class LineSink:
    """Writes lines from any thread. Without a reader the work is useless, and the process ends.
    `told`: whether a line other than signs of life was written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._wrote = time.monotonic()
        self.told = False
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
        self.told = True
        self._write(line.encode() + b"\n")

    def _write(self, line: bytes) -> None:
        self._wrote = time.monotonic()
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            os._exit(_UNREAD)

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


def end_soon(code: int, seconds: float) -> None:
    """Ends the process after so long, whatever it waits for: a reader that does not read, say."""
    last = threading.Timer(seconds, os._exit, (code,))
    last.daemon = True
    last.start()
