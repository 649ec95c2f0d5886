"""The recordings of runs on disk, and a player that plays one at its own speed or faster."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Final

from qtui.screen.keeper import Keeper
from qtui.tui.config import log_file
from qtui_core.live.snapshot import PhaseEnded, RecordingHeader, Snapshot
from qtui_core.live.state import RunEvent, RunRecording, RunState, after, to_line

#: The most recordings that are kept; the oldest is deleted first.
KEPT: Final = 20


def recordings() -> Path:
    """The folder of recordings, beside the log."""
    return log_file().with_name("runs")


def run_keeper(folder: Path | None = None) -> Keeper[RunEvent]:
    """A writer of a run's recording, from its header on."""
    return Keeper(folder or recordings(), "run", KEPT, to_line, RecordingHeader)


SPEEDS: Final = (1, 4, 16)
#: The player keeps the state after every this many messages, so that going back replays at most
#: that many, which takes a twentieth of a second.
KEPT_EVERY: Final = 2048


class Player:
    """Plays a recording.

    `state` is the state of the run at the position `seconds`, at first where the libraries are
    imported: the seconds before show nothing. The position advances with `clock` (seconds, like
    time.monotonic), unless the player is paused or at the end.
    """

    def __init__(
        self, recording: RunRecording, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.recording = recording
        self.speed: int = SPEEDS[0]
        self.paused = False
        self._clock = clock
        self._looked = clock()
        # A sample may be written after messages about later moments.
        self._times = list(accumulate((event.seconds for event in recording.snapshots), max))
        imported = (each for each in recording.snapshots if isinstance(each, PhaseEnded))
        self._start = next((each.seconds for each in imported if each.phase == "import"), 0.0)
        self.seconds = self._start
        self._told = 0
        self.state = after(RunState(), recording.header)
        self._kept = [self.state]

    @property
    def length(self) -> float:
        """The length of the recording in seconds."""
        return self._times[-1] if self._times else 0.0

    @property
    def ended(self) -> bool:
        """Whether the position is at the end."""
        return self._told == len(self._times)

    def read_through(self) -> None:
        """Plays through the recording once, and goes back to the start, so that every later jump is
        fast. Takes seconds for hours of a run; call it in a thread, before the player is shown."""
        self._tell(len(self._times))
        self._tell(0)

    def advance(self) -> bool:
        """Advances the position to the clock. Returns whether there were messages."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        if self.paused or self.ended:
            return False
        self.seconds = min(self.length, self.seconds + self.speed * passed)
        self._tell(bisect_right(self._times, self.seconds))
        return True

    def seek(self, seconds: float) -> None:
        """Moves to a position."""
        self.seconds = max(0.0, min(seconds, self.length))
        self._looked = self._clock()
        self._tell(bisect_right(self._times, self.seconds))

    def jump(self, step: int) -> None:
        """Moves to the start of a step; to the end if there is no such step, and to where the
        libraries are imported for a step before the first."""
        self.seek(self._start if step < 1 else self._begin_of(step))

    def _begin_of(self, step: int) -> float:
        snapshots = self.recording.snapshots
        at = next((at for at, event in enumerate(snapshots) if _step_of(event) >= step), -1)
        return self._times[at] if snapshots else 0.0

    def pause(self, paused: bool) -> None:
        """Pauses the clock, or resumes it."""
        self.advance()
        self.paused = paused

    def restart(self) -> None:
        """Plays again from the start."""
        self.jump(0)
        self.paused = False

    def faster(self, by: int) -> None:
        """Takes the next higher (1) or lower (-1) speed."""
        at = SPEEDS.index(self.speed) + by
        self.advance()
        self.speed = SPEEDS[max(0, min(at, len(SPEEDS) - 1))]

    def _tell(self, upto: int) -> None:
        """Sets the state to that after the first `upto` messages."""
        nearest = min(upto // KEPT_EVERY, len(self._kept) - 1)
        if upto < self._told or nearest * KEPT_EVERY > self._told:
            self.state, self._told = self._kept[nearest], nearest * KEPT_EVERY
        for each in self.recording.snapshots[self._told : upto]:
            self.state = after(self.state, each)
            self._told += 1
            if self._told == KEPT_EVERY * len(self._kept):
                self._kept.append(self.state)


def _step_of(event: Snapshot) -> int:
    """The step of a message; 0 if it belongs to none."""
    return getattr(event, "step", 0)
