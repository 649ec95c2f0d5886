"""Measurements over time, in a series whose length is bounded however long a run is."""

from __future__ import annotations

from typing import Final

from qtui_core.dataclass import dataclass

#: The most moments of a series: more than a wide terminal has dots.
MOST: Final = 1024


@dataclass(frozen=True)
class Moment:
    """The levels at a moment, in bytes; None if unknown.

    Attributes:
        seconds: since the run began.
        step, phase: the current ones.
        allocated, reserved: of the allocator, or of live tensors.
        process, device: of this process, and of all processes on the device, according to the
            driver.
    """

    seconds: float
    step: int
    phase: str
    allocated: int | None = None
    reserved: int | None = None
    process: int | None = None
    device: int | None = None


@dataclass(frozen=True)
class Series:
    """The moments of a whole run. Each stands for `each` added moments: it has their largest values
    and the time of the first. The last one can include `room` more."""

    moments: tuple[Moment, ...] = ()
    each: int = 1
    room: int = 0


def add(series: Series, moment: Moment) -> Series:
    """A series with one more moment. If there are too many, every two of them become one with the
    larger values, so that no peak is lost."""
    if series.room:
        moments = (*series.moments[:-1], _most(series.moments[-1], moment))
        return Series(moments, series.each, series.room - 1)
    moments, each = series.moments, series.each
    if len(moments) >= MOST:
        moments = tuple(map(_most, moments[::2], moments[1::2]))
        each *= 2
    return Series((*moments, moment), each, each - 1)


def _most(first: Moment, second: Moment) -> Moment:
    return Moment(
        first.seconds,
        first.step,
        first.phase,
        larger(first.allocated, second.allocated),
        larger(first.reserved, second.reserved),
        larger(first.process, second.process),
        larger(first.device, second.device),
    )


def larger(first: int | None, second: int | None) -> int | None:
    """The larger of two numbers; if one is None (unknown), the other."""
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)
