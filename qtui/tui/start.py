"""Runs the app in this terminal, from its configuration to its exit code, and ends it if the
terminal goes away."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from qtui.tui.app import QtuiApp
from qtui.tui.config import load_config
from qtui.tui.first import screen as first_screen
from qtui.tui.state import LastSession
from qtui.tui.terminal import start_log
from qtui_core.errors import ModelError
from qtui_core.threads import limit_threads

#: Seconds that the app may take to end after the terminal's hang-up, before it is asked again.
PATIENCE: Final = 3.0


def run(
    model: str = "",
    *,
    color: str = "auto",
    ascii: bool = False,
    debug: bool = False,
    recording: Path | str | None = None,
) -> int:
    """Runs the app in this terminal and returns its exit code. Without a `model` it goes on where
    the last session ended.

    There must be a terminal, which the command line checks. Raises UsageError for a wrong
    configuration, and at the end ModelError if no model could be opened; a recording needs none.
    """
    from qtui.ending import Ended, say

    first_screen.measure_terminal()
    config = load_config()
    if config.threads:  # the variable counts more than the file, and --threads sets it
        limit_threads(config.threads)
    session = LastSession.of(config, goes_on=recording is None)
    app = QtuiApp(
        session.model(model), config=config, color=color, ascii=ascii, debug=debug,
        recording=recording, session=session, says=first_screen.heard(color, config),
    )  # fmt: skip
    # Imported objects live as long as the app. Without this the collector would visit them often
    # during the start, which took a fifth of its processor time.
    gc.freeze()
    gc.set_threshold(50_000, 10, 20)
    gc.enable()
    no_log = start_log(debug)
    if no_log:
        app.call_later(app.tell, no_log, "warning")
    end_without_terminal()
    try:
        app.run()
    finally:
        if app.farewell:
            say(app.farewell)
    if app.ended_by:
        raise Ended(app.ended_by)
    failed = app.model_failure and not app.model_opened
    if not app.return_code and failed and recording is None:
        raise ModelError(app.model_failure)
    return app.return_code or 0


def end_without_terminal() -> None:
    """From now on the app ends when its terminal does.

    A terminal that goes away sends SIGHUP, which ends the app. If SIGHUP is ignored (nohup), or
    reaches only another process, the app would read the end of its input again and again and draw
    for nobody.
    """
    stdin = sys.stdin
    if hasattr(select, "poll") and stdin is not None and stdin.isatty():
        # Read now: once a hang-up is ending the app, further ones are ignored.
        deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        watched = (stdin.fileno(), deaf)
        threading.Thread(target=_watch, args=watched, name="hang-up", daemon=True).start()


def _watch(terminal: int, deaf: bool) -> None:
    """Sleeps until the terminal is gone; `deaf`: hang-ups are ignored."""
    poll = select.poll()
    poll.register(terminal, 0)  # a hang-up is reported without being requested
    poll.poll()
    if not deaf:
        # A second signal would interrupt what the first began.
        time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGTERM)
