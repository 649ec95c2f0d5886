"""Samples a value at even intervals while something else runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final, TypeVar

#: Seconds between two samples of a step: twenty a second.
INTERVAL: Final = 0.05
#: Seconds that the end of a block waits for a reading that hangs, as with a driver that was lost.
_PATIENCE: Final = 2.0

Reading = TypeVar("Reading")


@contextmanager
def sampling(
    interval: float, read: Callable[[], Reading], report: Callable[[Reading], object]
) -> Iterator[None]:
    """Calls `report(read())` every `interval` seconds in a daemon thread while its block runs.

        with sampling(0.05, reader.read, samples.append):
            step()

    A reading that takes longer than the interval delays the next one; missed readings are not made
    up for. The first reading is made at once, and none is reported after the block. What `read` or
    `report` raises ends the sampling and is raised at the end of the block, unless the block itself
    raised.
    """
    over = Event()
    errors: list[BaseException] = []

    def run() -> None:
        due = time.monotonic()
        try:
            while not over.wait(due - time.monotonic()):
                reading = read()
                if over.is_set():
                    return
                report(reading)
                due = max(due + interval, time.monotonic())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, name="sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_PATIENCE)
    if errors:
        raise errors[0]
