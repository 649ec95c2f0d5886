"""How this program ends, whether a command or the app runs: its last sentence, and signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

#: The process ends within this many seconds after a signal that asks it to.
WAY_OUT = 5.0


def say(sentence: str) -> None:
    """Writes a line to stderr. Control characters in it, such as those of a file name, are shown
    and not obeyed."""
    # If stderr cannot be written, the exit code still says how the command ended.
    with suppress(OSError):
        print(writable(sentence).decode(_encoding()), file=sys.stderr)
        sys.stderr.flush()


def writable(sentence: str) -> bytes:
    """The sentence in the encoding of stderr."""
    from qtui_core.models.quoting import printable

    shown = printable(sentence)
    # A message may quote a name that the terminal's encoding cannot represent.
    return shown.encode(_encoding(), "backslashreplace")


def _encoding() -> str:
    return sys.stderr.encoding or "utf-8"


class Ended(KeyboardInterrupt):
    """A signal asked this process to end. It is an exception, so that children are ended and
    half-written files removed on the way out, as after Ctrl+C."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


def ending_signals() -> list[signal.Signals]:
    """The signals that ask this process to end: SIGTERM, and SIGHUP except under nohup."""
    asked = (signal.SIGTERM, signal.SIGHUP)
    return [signum for signum in asked if signal.getsignal(signum) is not signal.SIG_IGN]


def end_in_order() -> None:
    """Makes the signals that end a process raise `Ended`, unless somebody handles them already."""

    def end(signum: int, frame: object) -> NoReturn:
        begin_way_out(signum)
        raise Ended(signum)

    for signum in ending_signals():
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, end)


def end_by_signal(interrupt: BaseException) -> None:
    """Ends the process by the signal that raised `Ended`, so that its sender sees that it was
    obeyed; returns from any other interrupt."""
    if isinstance(interrupt, Ended):
        signal.signal(interrupt.signum, signal.SIG_DFL)
        os.kill(os.getpid(), interrupt.signum)


def begin_way_out(signum: int) -> None:
    """Must be called when a signal is obeyed: the process then ends within `WAY_OUT` seconds."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends it at once
    if signum != signal.SIGTERM:
        # The terminal and the shell each send a hang-up: the second does not mean impatience.
        signal.signal(signum, signal.SIG_IGN)
    # The exception may be lost in whatever code runs now, so a SIGTERM follows.
    again = threading.Timer(WAY_OUT, os.kill, (os.getpid(), signal.SIGTERM))
    again.daemon = True
    again.start()
