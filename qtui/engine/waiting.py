"""Time limits for child processes: without a sign of life, and until they end."""

from __future__ import annotations

import time
from typing import Final

#: Seconds between two signs of life of a working child. A thread of its own sends them, which a
#: call into C that holds the GIL blocks too.
PULSE_SECONDS: Final = 1.0
#: Seconds between two checks of a child.
LOOK_SECONDS: Final = 0.5
#: Seconds without a sign of life after which the screen reports it.
SILENT_AFTER_SECONDS: Final = 10.0
#: Seconds within which a child must end after its last line; then it is killed.
EXIT_SECONDS: Final = 2.0
#: Seconds that a child may go on with cancelled work while no caller waits; then it is killed.
HEED_SECONDS: Final = 5.0
#: Seconds that a run or an experiment has to reach its next step after a request to stop. Then it
#: writes its last lines from where it is.
LAST_STEP_SECONDS: Final = 0.3
#: Seconds that it has to end by itself after a request to stop, last lines included; then it is
#: killed. With the report afterwards, a stopped run takes less than a second.
STOP_SECONDS: Final = 0.5


class Silence:
    """Counts seconds without a sign of life; `look` is to be called every `LOOK_SECONDS`. If the
    time between two calls is much longer, it does not count, because then this process was
    suspended."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked = time.monotonic()

    def heard(self) -> None:
        """Starts counting again, after a sign of life or when no request is open."""
        self.seconds = 0.0

    def look(self) -> float:
        """The seconds without a sign of life."""
        now = time.monotonic()
        self.seconds += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        return self.seconds


def silence_of(who: str, seconds: float) -> str:
    """A sentence, beginning with `who`, that a child has not answered for `seconds`; empty for less
    than SILENT_AFTER_SECONDS."""
    return (
        f"{who} has not answered for {int(seconds)} s." if seconds >= SILENT_AFTER_SECONDS else ""
    )
