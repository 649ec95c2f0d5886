"""Textual's driver with the last screen between it and the terminal."""

from __future__ import annotations

import os
import signal
import termios
from asyncio import TimerHandle
from collections.abc import Callable
from threading import RLock
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.message import Message

from qtui.tui.wire.key_parser import KeyParser
from qtui.tui.wire.last_screen import LastScreen

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp

#: Seconds between two looks whether a terminal that read nothing reads again.
STALLED_SECONDS: Final = 0.05
#: Seconds for a signal that came with SIGCONT.
OBEYED_SECONDS: Final = 0.2


class TerminalDriver(LinuxDriver):
    """Sends what differs from the screen sent last, and never waits for the terminal.

    While the terminal does not read, screens are painted but not sent; once it reads again it gets
    the newest. (Textual's own driver stops the app at 30 writes that wait.)
    """

    _app: QtuiApp

    def __init__(self, app: QtuiApp, **options: Any) -> None:
        super().__init__(app, **options)
        self._last = LastScreen(erases=_erases(self.fileno))
        self._lock = RLock()  # keys are read in another thread, which writes, too
        self._stalled = False
        self._held: TimerHandle | None = None

    def write(self, data: str) -> None:
        """Paints; sends what it changes unless the terminal is behind or the painting is held.
        Anything else is sent at once, after what was painted before it."""
        with self._lock:
            if self._app.is_running and self._app.size != self._last.size:
                self._last.resize(*self._app.size)
            out = self._last.feed(data)
            if self._held is not None:
                pass
            elif not self._behind:
                out += self._last.difference()
            elif not self._stalled:
                self._stalled = True
                self._loop.call_soon_threadsafe(self._look_again)
            if out:
                super().write(out)

    def _look_again(self) -> None:
        """Sends what was painted meanwhile, if the terminal reads again."""
        if self._behind:
            self._loop.call_later(STALLED_SECONDS, self._look_again)
        elif self._writer_thread is not None and self._writer_thread.is_alive():
            self._stalled = False
            self.write("")

    @property
    def _behind(self) -> bool:
        """Whether something waits besides what is being written."""
        return self._writer_thread is not None and not self._writer_thread._queue.empty()

    def run_input_thread(self) -> None:
        # Textual makes its parser by this name, in the middle of the loop that reads keys.
        vars(linux_driver)["XTermParser"] = KeyParser
        super().run_input_thread()

    def hold(self, seconds: float) -> None:
        """Keeps what is painted from now on until `go_on`, for these seconds at most: several
        steps towards one screen are sent as that screen. Nothing more if it is held already."""
        if self._held is None:
            self._held = self._loop.call_later(seconds, self.go_on)

    def go_on(self) -> None:
        """Sends what was held."""
        if self._held is not None:
            self._held.cancel()
            self._held = None
            self.write("")

    def redraw(self) -> None:
        """Sends the whole screen, as something else may have written to the terminal."""
        self._last.forget()
        self.write("")

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self._stalled = False
        if self._writer_thread is not None:
            self._writer_thread._queue.maxsize = 0  # no bound: controls pass also while it waits
        resized = signal.getsignal(signal.SIGWINCH)

        def forget(signum: int, frame: FrameType | None) -> None:
            # Also if it has its old size again, about which Textual draws nothing.
            self._last.forget()
            if callable(resized):
                resized(signum, frame)

        signal.signal(signal.SIGWINCH, forget)

    def process_message(self, message: Message) -> None:
        if isinstance(message, Resize):
            self._last.forget()
        super().process_message(message)

    # A signal comes in the middle of anything, of a write, too: it is obeyed between two callbacks.

    def _sigtstp_application(self, *_: object) -> None:
        self._in_loop(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        self._in_loop(self._continued)

    def _in_loop(self, obey: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(obey)

    def _continued(self) -> None:
        # A terminal that goes away sends this signal too. The app cannot continue then, and
        # Textual's attempt to would fail while it exits.
        if not os.isatty(self.fileno):
            return
        if self._in_front:
            self._resume()
            return
        # After `bg` it waits for `fg`. After `kill %1` a SIGTERM came too, which the loop obeys
        # first; the terminal, which is the shell's, must not stop the way out.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._loop.call_later(OBEYED_SECONDS, self._stop_again)

    @property
    def _in_front(self) -> bool:
        """Whether this is the job that has the terminal; also if there is none any more."""
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:
            return True

    def _stop_again(self) -> None:
        # The kernel decides, at a touch that changes nothing: a signal of ours may come after `fg`.
        if self._app.ended_by:
            return
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        try:
            termios.tcflow(self.fileno, termios.TCOON)
        except termios.error:  # it was stopped, and SIGCONT is obeyed next; or nothing is there
            return
        finally:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._resume()

    def _resume(self) -> None:
        if not self._must_signal_resume:  # stopped by a signal that nobody sees
            self.suspend_application_mode()
        super()._sigcont_application()
        # The size is the old one, about which Textual draws nothing.
        self._app.refresh(layout=True)

    def stop_application_mode(self) -> None:
        if not self._in_front:
            self.attrs_before = None  # the shell has set its own
        super().stop_application_mode()


def _erases(terminal: int) -> bool:
    """Whether terminfo knows that this terminal erases cells, with the current background."""
    try:
        import curses

        curses.setupterm(fd=terminal)
        return curses.tigetflag("bce") > 0 and bool(curses.tigetstr("ech"))
    except Exception:  # no curses here, or nothing known of this terminal
        return False
