"""Samples are taken at equal intervals, and none after the end."""

from __future__ import annotations

import threading
import time
from itertools import count, pairwise

import pytest

from qtui_core.telemetry.readings import sampling


def test_twenty_a_second():
    times: list[float] = []
    enough = threading.Event()

    def report(at: float) -> None:
        times.append(at)
        if len(times) == 8:
            enough.set()

    began = time.monotonic()
    with sampling(0.05, time.monotonic, report):
        assert enough.wait(120)
    # On a busy machine some may be late, but there are never more.
    assert len(times) <= 1 + (time.monotonic() - began) / 0.05
    assert min(later - earlier for earlier, later in pairwise(times)) < 0.075


def test_the_first_is_read_at_once_and_the_end_does_not_wait_for_the_interval():
    numbers = count()
    seen: list[int] = []
    first = threading.Event()

    def report(number: int) -> None:
        seen.append(number)
        first.set()

    began = time.monotonic()
    with sampling(60.0, lambda: next(numbers), report):
        assert any(thread.name == "sampler" for thread in threading.enumerate())
        assert first.wait(120)
    assert time.monotonic() - began < 50
    assert not any(thread.name == "sampler" for thread in threading.enumerate())
    assert seen == [0]


def fails(error: Exception | None) -> None:
    """A block in which a reading failed, and that then raises `error` if there is one."""
    asked = threading.Event()

    def broken() -> int:
        asked.set()
        raise OSError("gone")

    with sampling(0.01, broken, lambda _: None):
        assert asked.wait(120)
        if error is not None:
            raise error


def test_an_error_of_a_reading_is_raised_at_the_end_and_one_of_the_block_first():
    with pytest.raises(OSError, match="gone"):
        fails(None)
    with pytest.raises(ValueError, match="of the block"):
        fails(ValueError("of the block"))
