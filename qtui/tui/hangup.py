"""The end of an app whose terminal is gone."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from typing import Final

#: How long the hang-up that a terminal sends may take to end the app before it is asked again.
PATIENCE: Final = 3.0


def end_without_terminal() -> None:
    """From now on the app ends when its terminal does.

    A terminal that goes away sends SIGHUP, which ends the app. Where that is ignored (nohup), or
    reaches another process only, an app would read the end of its input again and again and draw
    for nobody.
    """
    stdin = sys.stdin
    if hasattr(select, "poll") and stdin is not None and stdin.isatty():
        # Read now: once a hang-up is on its way to end the app, others are ignored.
        deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        watched = (stdin.fileno(), deaf)
        threading.Thread(target=_watch, args=watched, name="hang-up", daemon=True).start()


def _watch(terminal: int, deaf: bool) -> None:
    """Sleeps until the terminal is gone; `deaf` is whether hang-ups are ignored."""
    poll = select.poll()
    poll.register(terminal, 0)  # a hang-up is told without being asked for
    poll.poll()
    if not deaf:
        # A second signal would cut short what the first began.
        time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGTERM)
