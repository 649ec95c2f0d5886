"""Writing to the terminal without waiting for it: Textual's driver without its bounded queue."""

from __future__ import annotations

import os
from typing import Final

from textual.drivers.linux_driver import LinuxDriver

#: Writes that may wait for the terminal: about ten pictures. Textual's own driver stops the whole
#: app at that point.
BACKLOG: Final = 30


class TerminalDriver(LinuxDriver):
    """A driver whose writes never block, however long the terminal reads nothing: the app reads a
    run's reports in the thread that draws. Callers check `behind` before they draw a picture."""

    def start_application_mode(self) -> None:
        super().start_application_mode()
        if self._writer_thread is not None:
            self._writer_thread._queue.maxsize = 0  # no bound

    def _sigcont_application(self, *_: object) -> None:
        # A terminal that goes away sends this signal too. The app cannot continue then, and
        # Textual's attempt to would fail while it exits.
        if os.isatty(self.fileno):
            super()._sigcont_application()

    @property
    def behind(self) -> bool:
        """Whether so much is waiting for the terminal that another picture would only wait too."""
        return self._waiting > BACKLOG

    @property
    def caught_up(self) -> bool:
        """Whether the terminal has read everything, or everything but the last write."""
        return not self._waiting

    @property
    def _waiting(self) -> int:
        return 0 if self._writer_thread is None else self._writer_thread._queue.qsize()
