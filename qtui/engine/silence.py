"""How long a child has given no sign of life."""

from __future__ import annotations

import time
from typing import Final

#: Seconds between two signs of life of a child that works, in a thread of their own. (A call into
#: C that holds Python's lock keeps that thread back too.)
PULSE_SECONDS: Final = 1.0
#: Seconds between two looks at a child.
LOOK_SECONDS: Final = 0.5
#: Seconds without a sign after which it is said.
LIMIT_SECONDS: Final = 10.0


class Silence:
    """Seconds without a sign, as `look` finds them at every `LOOK_SECONDS`. Time in which nobody
    looked does not count: then it was this process that stood still."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked = time.monotonic()

    def heard(self) -> None:
        """There was a sign, or nothing is asked any more."""
        self.seconds = 0.0

    def look(self) -> float:
        """The seconds until now."""
        now = time.monotonic()
        self.seconds += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        return self.seconds


def silence_of(who: str, seconds: float) -> str:
    """That a child gives no sign of life, as a sentence that begins with `who`; empty below the
    limit."""
    return f"{who} has not answered for {int(seconds)} s." if seconds >= LIMIT_SECONDS else ""
