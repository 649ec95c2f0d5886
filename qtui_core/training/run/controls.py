"""Commands to a run from other threads: pause, resume, one step, stop, and a reading of the ranges
in the next step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Literal, get_args

Control = Literal["pause", "resume", "step", "stop", "ranges"]
CONTROLS: Final[tuple[Control, ...]] = get_args(Control)


class Stopped(BaseException):
    """The run was asked to stop. It is not derived from Exception, so that no code treats it as a
    failure."""


class Controls:
    """The commands that a run has been given. Any thread may call `say`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused = False
        self._stopping = False
        self._single = 0
        self._ranges = False

    def say(self, control: Control) -> None:
        """Gives a command. Pause and step take effect between two steps, ranges in the next step,
        stop at the next phase."""
        with self._changed:
            if control == "pause":
                self._paused, self._single = True, 0
            elif control == "resume":
                self._paused, self._single = False, 0
            elif control == "step":
                self._paused = True
                self._single += 1
            elif control == "ranges":
                self._ranges = True
            else:
                self._stopping = True
            self._changed.notify_all()

    def take_ranges(self) -> bool:
        """Whether ranges were requested since the last call."""
        with self._changed:
            asked, self._ranges = self._ranges, False
            return asked

    @property
    def stopping(self) -> bool:
        return self._stopping

    def check(self) -> None:
        """Raises Stopped if the run should stop."""
        if self._stopping:
            raise Stopped

    def before_step(self, report: Callable[[str], None]) -> None:
        """Returns when the next step may begin. Calls `report` with "paused" if it has to wait, and
        with "running" once it no longer has to. Raises Stopped."""
        with self._changed:
            self.check()
            if not self._paused:
                return
            if not self._single:
                report("paused")
                self._changed.wait_for(lambda: self._stopping or self._single or not self._paused)
                self.check()
                report("running")
            self._single = max(0, self._single - 1)
