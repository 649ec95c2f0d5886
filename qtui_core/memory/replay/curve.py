"""The curve of a run: live bytes by component over event numbers, and its peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Event
from qtui_core.memory.replay.repeated_events import RepeatedEvents
from qtui_core.memory.replay.timeline import STACK, Span, Timeline, read_timeline

#: Points of a drawn curve: more than a wide terminal has dots.
POINTS: Final = 512


@dataclass(frozen=True)
class Curve:
    """A curve to draw. `bytes` has one row for each of `components`, to be stacked in that order,
    with a value for each of `positions` (ascending event numbers). Each position is the one with
    the most live bytes in a range of events."""

    positions: tuple[int, ...]
    components: tuple[Component, ...]
    bytes: tuple[tuple[int, ...], ...]
    spans: tuple[Span, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        """Live bytes at each position."""
        return tuple(map(sum, zip(*self.bytes, strict=True)))


def draw(timeline: Timeline, start: int = 0, points: int = POINTS) -> Curve:
    """The curve from event `start` on, with at most `points` points.

    The events are divided into as many ranges as there are points; the point of a range is the
    event with the most live bytes, so that no peak is lost.
    """
    live = timeline.live
    count = len(live) - start
    if count <= 0:
        return Curve((), (), (), ())
    points = min(points, count)
    cuts = [start + i * count // points for i in range(points + 1)]
    positions = []
    for low, high in pairwise(cuts):
        part = live[low:high]
        positions.append(low + part.index(max(part)))
    rows: dict[Component, list[int]] = {}
    for born, died, size, component in timeline.lives:
        if died <= start:
            continue
        # The first position at or after an event is in the event's range or the next.
        first = _first_at(positions, born, start, count, points)
        last = _first_at(positions, died, start, count, points)
        if first < last:
            row = rows.setdefault(component, [0] * (points + 1))
            row[first] += size
            row[last] -= size
    components = tuple(c for c in STACK if c in rows)
    return Curve(
        tuple(positions),
        components,
        tuple(tuple(_running(rows[c])) for c in components),
        tuple(Span(s.name, max(s.start, start), s.stop) for s in timeline.spans if s.stop > start),
    )


def _first_at(positions: list[int], number: int, start: int, count: int, points: int) -> int:
    if number <= start:
        return 0
    if number >= start + count:
        return points
    # Range i begins at start + i * count // points, which is <= number.
    index = ((number - start + 1) * points - 1) // count
    return index if positions[index] >= number else index + 1


def _running(changes: list[int]) -> list[int]:
    sums, total = [], 0
    for change in changes[:-1]:
        total += change
        sums.append(total)
    return sums


def peaks_by_phase(spans: Sequence[Span], levels: Sequence[int]) -> dict[str, tuple[int, int]]:
    """For each phase, in order of appearance, the largest of `levels` (one per event) in its spans,
    and the number of the event after which it was first reached."""
    found: dict[str, tuple[int, int]] = {}
    for span in spans:
        part = levels[span.start : span.stop]
        most = max(part)
        if span.name not in found or most > found[span.name][0]:
            found[span.name] = (most, span.start + part.index(most))
    return found


@dataclass(frozen=True)
class Peaks:
    """The most live bytes in each phase, without components."""

    by_phase: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """The most live bytes in all phases."""
        return max(self.by_phase.values(), default=0)

    @property
    def phase(self) -> str:
        """The first phase with that peak."""
        return max(self.by_phase, key=lambda name: self.by_phase[name], default="")


def read_peaks(events: Sequence[Event]) -> Peaks:
    """The peaks alone, without the lifetimes of buffers: enough to compare plans."""
    if isinstance(events, RepeatedEvents):
        timeline = read_timeline(events)
        found: dict[str, int] = {}
        for span, (live, _) in zip(timeline.spans, timeline.tops, strict=True):
            found[span.name] = max(live, found.get(span.name, 0))
        return Peaks(found)
    sizes: dict[object, int] = {}
    by_phase: dict[str, int] = {}
    live = most = 0
    phase = ""
    for event in events:
        kind = event[0]
        if kind == ALLOCATE:
            size = sizes[event[1]] = -(-int(event[2]) // 512) * 512
            live += size
            if live > most:
                most = live
        elif kind == FREE:
            live -= sizes[event[1]]
        elif kind == PHASE:
            by_phase[phase] = max(most, by_phase.get(phase, 0))
            phase, most = str(event[1]), live
    by_phase[phase] = max(most, by_phase.get(phase, 0))
    if not by_phase[""]:
        del by_phase[""]
    return Peaks(by_phase)
