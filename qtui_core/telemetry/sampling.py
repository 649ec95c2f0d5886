"""Samples a value at even intervals while something else runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

#: Seconds between two samples of a step: twenty a second.
INTERVAL: Final = 0.05
#: Seconds that the end of a block waits for a reading that hangs, as with a driver that was lost.
_PATIENCE: Final = 2.0

Reading = TypeVar("Reading")


class Sampler(Generic[Reading]):
    """Calls `report(read())` every `interval` seconds in a daemon thread while its block runs.

        with Sampler(0.05, reader.read, samples.append):
            step()

    `report` is called in that thread. A reading that takes longer than the interval delays the next
    one; missed readings are not made up for. The first reading is made at once, and none is made
    after the block. What `read` or `report` raises ends the sampling and is raised at the end of
    the block, unless the block itself raised.
    """

    def __init__(
        self, interval: float, read: Callable[[], Reading], report: Callable[[Reading], object]
    ) -> None:
        if interval <= 0:
            raise ValueError(f"The interval of a sampler is over 0 seconds, not {interval}.")
        self.interval = interval
        self._read = read
        self._report = report
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._over.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._over.is_set():
                reading = self._read()
                if self._over.is_set():
                    return
                self._report(reading)
                due = max(due + self.interval, time.monotonic())
                self._over.wait(due - time.monotonic())
        except BaseException as failure:
            self._error = failure
