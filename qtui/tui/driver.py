"""Writing to the terminal without waiting for it: Textual's driver but for its queue."""

from __future__ import annotations

import os
from typing import Final

from textual.drivers.linux_driver import LinuxDriver

#: Writes that may wait for the terminal: about ten pictures. Textual's own driver holds the whole
#: app there.
BACKLOG: Final = 30


class TerminalDriver(LinuxDriver):
    """A driver whose writes never wait, however long the terminal takes nothing: the app reads
    what a run tells in the thread that draws. Whoever draws asks `behind` before a picture."""

    def start_application_mode(self) -> None:
        super().start_application_mode()
        if self._writer_thread is not None:
            self._writer_thread._queue.maxsize = 0  # no bound

    def _sigcont_application(self, *_: object) -> None:
        # A terminal that goes away sends this signal too. There is nothing to go on with then, and
        # Textual's attempt would fail in the middle of the way out.
        if os.isatty(self.fileno):
            super()._sigcont_application()

    @property
    def behind(self) -> bool:
        """Whether so much waits for the terminal that another picture would only wait too."""
        return self._waiting > BACKLOG

    @property
    def caught_up(self) -> bool:
        """Whether the terminal has taken everything, or is about to take the last of it."""
        return not self._waiting

    @property
    def _waiting(self) -> int:
        return 0 if self._writer_thread is None else self._writer_thread._queue.qsize()
