"""What is alive after each event, computed call by call: what is the same for all layers of a kind
is computed once (record.py)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from operator import add
from typing import Final, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.folding import repeated_events
from qtui_core.memory.replay.record import (
    ALLOCATE,
    BACKWARD,
    FREES,
    LAYER,
    OPERATION,
    OUTSIDE,
    OWN,
    PHASE,
    Call,
    Component,
    Event,
    Label,
    Program,
    by_lifetime,
    rounded,
)

STACK: Final = tuple(Component)
#: The place of a backward pass, before the number of its layer.
_BACKWARD: Final = "in the backward of layer "
_PLACES: Final = {component: place for place, component in enumerate(STACK)}

#: Bytes of each component, in the order of the stack.
Composition = tuple[int, ...]


class Allocation(NamedTuple):
    """A buffer, or equal buffers of several layers.

    Attributes:
        copies: how many there are.
        bytes: of each, rounded up to 512 as in CUDA's allocator.
        asked: bytes before rounding.
        label: what it is.
        born, died: phases of its first and last event; `died` is empty if it is never freed.
        operation, module: in which it was allocated; empty if unknown.
    """

    copies: int
    bytes: int
    asked: int
    label: Label
    born: str
    died: str
    operation: str
    module: str

    @property
    def component(self) -> Component:
        """From its label, else from its lifetime."""
        return self.label.component or by_lifetime(self.born, self.died)


@dataclass(frozen=True)
class Span:
    """An occurrence of a phase: its events are start <= number < stop."""

    name: str
    start: int
    stop: int


class Stand(NamedTuple):
    """The state when a call begins: live bytes, the current phase and operation, and the current
    layer in words."""

    live: int
    phase: str
    operation: Event | None
    place: str


class Timeline:
    """What is alive after each event of a recording.

    Attributes:
        events: from which it is computed.
        spans: the phases, in order.
        tops: for each span, the most live bytes, each buffer rounded up to 512, and the first event
            after which they are reached.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        """Raises ValueError if a buffer is freed that is not alive."""
        self.events = repeated_events(events)
        self._stands: list[Stand] = []
        self.spans, self.tops = self._read()

    def _read(self) -> tuple[tuple[Span, ...], tuple[tuple[int, int], ...]]:
        begun: list[tuple[str, int]] = []
        tops: list[tuple[int, int]] = []
        live, phase, place = 0, "", ""
        operation: Event | None = None
        for call, start in zip(self.events.calls, self.events.starts, strict=False):
            program = call.program
            place = _place(call, place)
            self._stands.append(Stand(live, phase, operation, place))
            for name, low, most, at in program.spans:
                if name is not None:
                    phase, operation = name, None
                    begun.append((name, start + low))
                    tops.append((live + most, start + at))
                elif tops and live + most > tops[-1][0]:
                    tops[-1] = (live + most, start + at)
            live += sum(program.rises[-1:])
            operation = program.operation or operation
        bounds = [*(start for _, start in begun), len(self.events)]
        spans = tuple(Span(name, start, bounds[i + 1]) for i, (name, start) in enumerate(begun))
        return spans, tuple(tops)

    @property
    def most(self) -> int:
        """The most live bytes of all."""
        return max((live for live, _ in self.tops), default=0)

    @cached_property
    def live(self) -> list[int]:
        """Live bytes after each event, each buffer rounded up to 512."""
        found: list[int] = []
        for call, stand in zip(self.events.calls, self._stands, strict=True):
            before = stand.live
            found += [before + rise for rise in call.program.rises]
        return found

    def held(self, number: int) -> dict[Component, int]:
        """The live bytes of each component after an event, in the order of the stack."""
        index = self._call_of(number)
        if index < 0:
            return {}
        before, rows = self._compositions[index]
        row = rows[min(number, len(self.events) - 1) - self.events.starts[index]]
        sums = zip(STACK, map(add, before, row), strict=True)
        return {component: nbytes for component, nbytes in sums if nbytes}

    def bytes_of(self, components: Collection[Component]) -> list[int]:
        """The live bytes of some components after each event."""
        places = [_PLACES[component] for component in components]
        found: list[int] = []
        for before, rows in self._compositions:
            base = sum(before[place] for place in places)
            found += [base + sum(row[place] for place in places) for row in rows]
        return found

    @cached_property
    def _compositions(self) -> list[tuple[Composition, list[Composition]]]:
        """For each call, the bytes by component before it, and after each of its steps less those.
        Calls of a program whose buffers live alike share a list."""
        known: dict[tuple[object, ...], list[Composition]] = {}
        found: list[tuple[Composition, list[Composition]]] = []
        lasting: list[dict[int, Component]] = []
        before: Composition = (0,) * len(STACK)
        for number, call in enumerate(self.events.calls):
            program, phase = call.program, self._stands[number].phase
            kept = {
                ordinal: program.component(ordinal, phase, self._ends[number, ordinal][1])
                for ordinal in program.left
            }
            lasting.append(kept)
            freed = [lasting[call.owners[owner]][ordinal] for _, owner, ordinal, _ in program.frees]
            key = (id(program), phase, *kept.values(), *freed)
            if key not in known:
                known[key] = list(_compositions(program, phase, kept, freed))
            rows = known[key]
            found.append((before, rows))
            before = tuple(map(add, before, rows[-1])) if rows else before
        return found

    def alive_at(self, number: int, layer: int | None = None) -> list[Allocation]:
        """The buffers that are alive after an event; equal buffers of several layers are one entry.
        With `layer`, only those allocated in the work on that layer."""
        if not self.events.calls:
            return []
        last = self._call_of(number)
        starts = self.events.starts
        # Program, ordinal and phase of the end -> the first call, and how many there are.
        alike: dict[tuple[int, int, str], list[int]] = {}
        for index, call in enumerate(self.events.calls[: last + 1]):
            if layer not in (None, call.layer):
                continue
            program = call.program
            key = id(program)
            left = program.left
            if index == last:
                left = [n for n in left if starts[last] + program.buffers[n].start <= number]
            for ordinal in left:
                stop, died = self._ends[index, ordinal]
                if stop > number:
                    group = alike.setdefault((key, ordinal, died), [index, 0])
                    group[1] += 1
        program, start = self.events.calls[last].program, starts[last]
        own = program.ends if layer in (None, self.events.calls[last].layer) else {}
        found = [
            self._allocation(index, ordinal, died, count)
            for (_, ordinal, died), (index, count) in alike.items()
        ]
        for ordinal, end in own.items():
            if start + program.buffers[ordinal].start <= number < start + end:
                died = program.phase_before(end) or self._stands[last].phase
                found.append(self._allocation(last, ordinal, died, 1))
        return found

    def fullest_of(self, layer: int) -> int | None:
        """The event, in the last backward pass of a layer, after which it holds the most bytes;
        None if there is none."""
        places = groupby(range(len(self._stands)), lambda number: self._stands[number].place)
        passes = [[*calls] for place, calls in places if place == f"{_BACKWARD}{layer}"]
        if not passes:
            return None
        low, high = self.events.starts[passes[-1][0]], self.events.starts[passes[-1][-1] + 1]
        live = self.live[low:high]
        return low + live.index(max(live))

    def operation_at(self, number: int) -> str:
        """The operation that an event belongs to and where it is, as "mul of mlp, backward of layer
        31"; empty if unknown."""
        index = self._call_of(number)
        call, stand = self.events.calls[index], self._stands[index]
        operation = stand.operation
        for step in call.program.steps[: number - self.events.starts[index] + 1]:
            if step[0] == PHASE:
                operation = None
            elif step[0] == OPERATION:
                operation = step[4]
        if operation is None:
            return ""
        _, name, module = operation
        parts = (name, f"of {module}" if module else "", stand.place)
        return " ".join(part for part in parts if part)

    def _call_of(self, number: int) -> int:
        """The call that an event belongs to; the last one past the end."""
        return min(bisect_right(self.events.starts, number), len(self.events.calls)) - 1

    @cached_property
    def _ends(self) -> dict[tuple[int, int], tuple[int, str]]:
        """(call, ordinal) -> the event and the phase in which another call frees the buffer; past
        the last event, and empty, if none does."""
        last = len(self.events), ""
        found: dict[tuple[int, int], tuple[int, str]] = defaultdict(lambda: last)
        for number, call in enumerate(self.events.calls):
            start, phase = self.events.starts[number], self._stands[number].phase
            for step, owner, ordinal, died in call.program.frees:
                found[call.owners[owner], ordinal] = (start + step, died or phase)
        return found

    def _allocation(self, index: int, ordinal: int, died: str, count: int) -> Allocation:
        call, stand = self.events.calls[index], self._stands[index]
        buffer = call.program.buffers[ordinal]
        made = buffer.operation
        if made is None and buffer.phase is None:
            made = stand.operation
        _, operation, module = made or (OPERATION, "", "")
        return Allocation(
            copies=count,
            bytes=buffer.bytes,
            asked=buffer.asked,
            label=buffer.label,
            born=buffer.phase or stand.phase,
            died=died,
            operation=operation,
            module=module,
        )


def _place(call: Call, before: str) -> str:
    """The layer of a call in words; `before` is that of the call before it."""
    steps = call.program.steps
    if not steps or steps[0][0] != LAYER:
        return before
    if call.layer == OUTSIDE:
        return ""
    return f"{_BACKWARD if steps[0][4][2] == BACKWARD else 'in layer '}{call.layer}"


def _compositions(
    program: Program, phase: str, kept: Mapping[int, Component], freed: Iterable[Component]
) -> Iterator[Composition]:
    """What `Timeline._compositions` has for a call that begins in `phase`. `kept` are components of
    the buffers that it does not free, `freed` of the buffers of other calls that it frees."""
    of_others = iter(freed)
    now = [0] * len(STACK)
    row = tuple(now)
    for kind, owner, ordinal, nbytes, _ in program.steps:
        if kind == ALLOCATE or kind in FREES:
            if owner != OWN:
                component = next(of_others)
            elif ordinal in kept:
                component = kept[ordinal]
            else:
                died = program.phase_before(program.ends[ordinal]) or phase
                component = program.component(ordinal, phase, died)
            now[_PLACES[component]] += rounded(nbytes) if kind == ALLOCATE else -rounded(nbytes)
            row = tuple(now)
        yield row


# ---------------------------------------------------------------------- the curve of a run
# Live bytes by component over event numbers, its peaks, and the seven groups of components in
# reports.

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
