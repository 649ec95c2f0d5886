"""A recording that plays: the same things told, at their own times or faster."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from qtui_core.live.lines import Told
from qtui_core.live.recording import Recording
from qtui_core.live.state import RunState, after

SPEEDS: Final = (1, 4, 16)


class Player:
    """Where a recording is, and what was told until there.

    `state` is what a live run would be known by at `seconds`. The clock runs unless it is paused
    or at the end. `clock` gives seconds, as time.monotonic does.
    """

    def __init__(self, recording: Recording, clock: Callable[[], float] = time.monotonic) -> None:
        self.recording = recording
        self.speed: int = SPEEDS[0]
        self.paused = False
        self.seconds = 0.0
        self._clock = clock
        self._looked = clock()
        self._times = [told.seconds for told in recording.snapshots]
        self._told = 0
        self.state = after(RunState(), recording.header)

    @property
    def length(self) -> float:
        """Seconds of the whole recording."""
        return max(self._times, default=0.0)

    @property
    def ended(self) -> bool:
        """Whether all was told."""
        return self._told == len(self._times)

    @property
    def steps(self) -> int:
        """The last step of the recording."""
        return max((getattr(told, "step", 0) for told in self.recording.snapshots), default=0)

    def advance(self) -> bool:
        """Goes on to where the clock is; whether anything was told on the way."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        if self.paused or self.ended:
            return False
        self.seconds = min(self.length, self.seconds + self.speed * passed)
        return self._tell(bisect_right(self._times, self.seconds))

    def jump(self, step: int) -> None:
        """To the moment at which a step begins; to the end of the last where there is no such
        step, to the start for one before the first."""
        at = len(self._times)
        for index, told in enumerate(self.recording.snapshots):
            if getattr(told, "step", 0) >= max(step, 0) and step > 0:
                at = index + 1
                break
        if step <= 0:
            at = 0
        self.seconds = self._times[at - 1] if at else 0.0
        self._looked = self._clock()
        self._tell(at)

    def pause(self, paused: bool) -> None:
        """Holds the clock, or lets it go on from where it is."""
        self.advance()
        self.paused = paused

    def restart(self) -> None:
        """From the start."""
        self.jump(0)
        self.paused = False

    def faster(self, by: int) -> None:
        """The next speed, or the one before."""
        at = SPEEDS.index(self.speed) + by
        self.advance()
        self.speed = SPEEDS[max(0, min(at, len(SPEEDS) - 1))]

    def _tell(self, upto: int) -> bool:
        """The state after so many things were told."""
        if upto < self._told:
            self.state, self._told = after(RunState(), self.recording.header), 0
        told: list[Told] = list(self.recording.snapshots[self._told : upto])
        for each in told:
            self.state = after(self.state, each)
        self._told = upto
        return bool(told)
