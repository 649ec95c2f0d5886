"""How long a child is waited for: while it gives no sign of life, and when it is to end."""

from __future__ import annotations

import time
from typing import Final

#: Seconds between two signs of life of a child that works. A thread of its own sends them; a call
#: into C that holds Python's lock stops that thread too.
PULSE_SECONDS: Final = 1.0
#: Seconds between two looks at a child.
LOOK_SECONDS: Final = 0.5
#: Seconds without a sign of life after which the screen says so.
SILENT_AFTER_SECONDS: Final = 10.0
#: Seconds that a child that has said its last has to end; then it is killed.
EXIT_SECONDS: Final = 2.0
#: Seconds that a child may continue with cancelled work, while no caller waits, before it is ended.
HEED_SECONDS: Final = 5.0
#: Seconds that a run or an experiment may go on to its next step once it is told to stop. Then it
#: writes its last lines from where it is.
LAST_STEP_SECONDS: Final = 0.3
#: Seconds that it has to end by itself before it is killed, last lines included, so that with its
#: report all is over within one.
STOP_SECONDS: Final = 0.5


class Silence:
    """Seconds without a sign of life, as `look` finds them at every `LOOK_SECONDS`. Time between
    looks that is much longer does not count: then this process itself stood still."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked = time.monotonic()

    def heard(self) -> None:
        """Starts counting again: there was a sign of life, or nothing is requested any more."""
        self.seconds = 0.0

    def look(self) -> float:
        """The seconds until now."""
        now = time.monotonic()
        self.seconds += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        return self.seconds


def silence_of(who: str, seconds: float) -> str:
    """The sentence that a child gives no sign of life, which begins with `who`; empty while it has
    been silent for less than SILENT_AFTER_SECONDS."""
    return (
        f"{who} has not answered for {int(seconds)} s." if seconds >= SILENT_AFTER_SECONDS else ""
    )
