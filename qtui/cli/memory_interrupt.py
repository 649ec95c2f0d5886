"""Ctrl+C while a tape is recorded.

Python drops every exception that is raised in a `__del__`, and prints it. A tape frees its buffers
there, so a good part of all interruptions would be lost, and with each the event of a buffer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds until a lost interruption is sent once more: longer than any `__del__` takes.
_SOON = 0.01


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it an interruption that Python would drop is sent again until it arrives, and nothing
    is printed of it."""
    before = sys.unraisablehook

    def send_again(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            before(dropped)
            return
        from threading import Timer

        signum = getattr(dropped.exc_value, "signum", signal.SIGINT)
        timer = Timer(_SOON, os.kill, (os.getpid(), signum))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = send_again
    try:
        yield
    except KeyboardInterrupt:
        # A buffer that was only half made is freed on the way out and fails, of which nobody
        # wants to hear who has just ended the program.
        sys.unraisablehook = _say_nothing
        raise
    except BaseException:
        sys.unraisablehook = before
        raise
    sys.unraisablehook = before


def _say_nothing(dropped: Any) -> None:
    pass
