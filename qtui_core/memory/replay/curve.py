"""The curve of a run: live bytes by component over event numbers, its peaks, and the seven groups
of components in reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import Component
from qtui_core.memory.replay.timeline import STACK, Span, Timeline

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
    positions = [low + (part := live[low:high]).index(max(part)) for low, high in pairwise(cuts)]
    drawn = [timeline.held(position) for position in positions]
    components = [component for component in STACK if any(component in held for held in drawn)]
    return Curve(
        tuple(positions),
        tuple(components),
        tuple(tuple(held.get(component, 0) for held in drawn) for component in components),
        tuple(Span(s.name, max(s.start, start), s.stop) for s in timeline.spans if s.stop > start),
    )


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


@dataclass(frozen=True)
class Group:
    """Components that are shown together.

    Attributes:
        letter: its mark, as not everyone can tell the colours apart.
        name: in words; `short`: for narrow places.
        components: in it.
    """

    letter: str
    name: str
    short: str
    components: tuple[Component, ...]


#: From bottom to top: what stays lies below what comes and goes.
GROUPS: Final = (
    Group("W", "weights", "weights",
          (Component.WEIGHTS, Component.QUANTIZATION, Component.BUFFERS)),
    Group("R", "adapters", "adapters", (Component.ADAPTERS,)),
    Group("O", "optimizer states", "optimizer", (Component.OPTIMIZER,)),
    Group("G", "gradients", "grads", (Component.GRADIENTS,)),
    Group("A", "activations", "acts",
          (Component.ACTIVATIONS, Component.CACHE, Component.INPUTS)),
    Group("L", "loss", "loss", (Component.LOSS,)),
    Group("T", "temps and workspaces", "temps", (Component.TEMPORARIES, Component.WORKSPACES)),
)  # fmt: skip

#: Name of a component -> its index in GROUPS.
PLACES: Final = {
    component.value: place for place, group in enumerate(GROUPS) for component in group.components
}


def place_of(component: str) -> int:
    """The index of a component's group; an unknown component counts as a temporary."""
    return PLACES.get(component, len(GROUPS) - 1)


def grouped(components: Iterable[tuple[str, int]]) -> list[tuple[Group, int]]:
    """The groups that are present with their bytes, from bottom to top."""
    sums: dict[int, int] = {}
    for name, nbytes in components:
        sums[place_of(name)] = sums.get(place_of(name), 0) + nbytes
    return [(GROUPS[place], sums[place]) for place in sorted(sums)]


@dataclass(frozen=True)
class StackedCurve:
    """Bytes of each group (in the order of GROUPS) at `positions`, which are event numbers; `bands`
    are the phases."""

    positions: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    bands: tuple[Span, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*self.rows, strict=True)))


def stacked(
    positions: Iterable[int],
    components: Iterable[str],
    bytes: Iterable[Sequence[int]],
    bands: Iterable[Span],
) -> StackedCurve:
    """The stacked curve of a curve with a row of bytes for each component."""
    places = tuple(positions)
    rows = [[0] * len(places) for _ in GROUPS]
    for component, values in zip(components, bytes, strict=True):
        row = rows[place_of(component)]
        for at, nbytes in enumerate(values):
            row[at] += nbytes
    return StackedCurve(places, tuple(map(tuple, rows)), tuple(bands))
