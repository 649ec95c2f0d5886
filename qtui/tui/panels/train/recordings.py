"""Recordings of runs: where they are kept, and one that plays at its own speed or faster."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Final

from qtui.screen.keeper import Keeper
from qtui.tui.config import log_file
from qtui_core.live.header import RecordingHeader
from qtui_core.live.lines import Told, to_line
from qtui_core.live.recording import RunRecording
from qtui_core.live.snapshot import Snapshot
from qtui_core.live.state import RunState, after

#: The oldest goes first.
KEPT: Final = 20


def recordings() -> Path:
    """The folder of recordings, beside the log."""
    return log_file().with_name("runs")


def run_keeper(folder: Path | None = None) -> Keeper[Told]:
    """Records a run from its header on."""
    return Keeper(folder or recordings(), "run", KEPT, to_line, RecordingHeader)


SPEEDS: Final = (1, 4, 16)
#: Of so many things told, the state after the last is kept: going back tells no more than that
#: many again, which takes a twentieth of a second.
KEPT_EVERY: Final = 2048


class Player:
    """Where a recording is, and what was told until there.

    `state` is what a live run would be known by at `seconds`. The clock runs unless it is paused
    or at the end. `clock` gives seconds, as time.monotonic does.
    """

    def __init__(
        self, recording: RunRecording, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.recording = recording
        self.speed: int = SPEEDS[0]
        self.paused = False
        self.seconds = 0.0
        self._clock = clock
        self._looked = clock()
        # A sample may be written after what happened while it was taken.
        self._times = list(accumulate((told.seconds for told in recording.snapshots), max))
        self._told = 0
        self.state = after(RunState(), recording.header)
        self._kept = [self.state]

    @property
    def length(self) -> float:
        """Seconds of the whole recording."""
        return self._times[-1] if self._times else 0.0

    @property
    def ended(self) -> bool:
        """Whether all was told."""
        return self._told == len(self._times)

    def read_through(self) -> None:
        """Tells all of it once, from the start to the end and back, so that every jump is a short
        one. Takes some seconds for hours of a run: in a thread, before it is shown."""
        self._tell(len(self._times))
        self._tell(0)

    def advance(self) -> bool:
        """Goes on to where the clock is; whether it went."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        if self.paused or self.ended:
            return False
        self.seconds = min(self.length, self.seconds + self.speed * passed)
        self._tell(bisect_right(self._times, self.seconds))
        return True

    def seek(self, seconds: float) -> None:
        """To a moment of the recording."""
        self.seconds = max(0.0, min(seconds, self.length))
        self._looked = self._clock()
        self._tell(bisect_right(self._times, self.seconds))

    def jump(self, step: int) -> None:
        """To the moment at which a step begins; to the end where there is no such step, to the
        start for one before the first."""
        self.seek(0.0 if step < 1 else self._begin_of(step))

    def _begin_of(self, step: int) -> float:
        snapshots = self.recording.snapshots
        at = next((at for at, told in enumerate(snapshots) if _step_of(told) >= step), -1)
        return self._times[at] if snapshots else 0.0

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

    def _tell(self, upto: int) -> None:
        """The state after so many things were told."""
        nearest = min(upto // KEPT_EVERY, len(self._kept) - 1)
        if upto < self._told or nearest * KEPT_EVERY > self._told:
            self.state, self._told = self._kept[nearest], nearest * KEPT_EVERY
        for each in self.recording.snapshots[self._told : upto]:
            self.state = after(self.state, each)
            self._told += 1
            if self._told == KEPT_EVERY * len(self._kept):
                self._kept.append(self.state)


def _step_of(told: Snapshot) -> int:
    """The step that something was told in; 0 of what is of none."""
    return getattr(told, "step", 0)
