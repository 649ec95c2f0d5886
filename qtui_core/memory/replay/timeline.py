"""What is alive after each event, computed call by call: what is the same for all layers of a kind
is computed once (program.py)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Final, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.program import Program
from qtui_core.memory.replay.record import (
    BACKWARD,
    LAYER,
    OPERATION,
    OUTSIDE,
    PHASE,
    Component,
    Event,
    Label,
    Phase,
)
from qtui_core.memory.replay.repeated_events import Call, RepeatedEvents, repeated_events

#: The order in which components are stacked: what stays lies below what comes and goes.
STACK: Final = (
    Component.WEIGHTS,
    Component.QUANTIZATION,
    Component.ADAPTERS,
    Component.BUFFERS,
    Component.WORKSPACES,
    Component.OPTIMIZER,
    Component.CACHE,
    Component.GRADIENTS,
    Component.INPUTS,
    Component.ACTIVATIONS,
    Component.LOSS,
    Component.TEMPORARIES,
)


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


class Life(NamedTuple):
    """A buffer that is alive after the events start <= number < stop, like an `Allocation`."""

    start: int
    stop: int
    bytes: int
    component: Component


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

    def __init__(self, events: RepeatedEvents) -> None:
        self.events = events
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
            live += program.net
            operation = program.operation or operation
        bounds = [*(start for _, start in begun), len(self.events)]
        spans = tuple(Span(name, start, bounds[i + 1]) for i, (name, start) in enumerate(begun))
        return spans, tuple(tops)

    @cached_property
    def live(self) -> list[int]:
        """Live bytes after each event, each buffer rounded up to 512."""
        found: list[int] = []
        for call, stand in zip(self.events.calls, self._stands, strict=True):
            before = stand.live
            found += [before + rise for rise in call.program.rises]
        return found

    @cached_property
    def lives(self) -> list[Life]:
        """The lives of all buffers, in the order of their calls."""
        found: list[Life] = []
        known: dict[tuple[int, str], list[tuple[int, int, int, Component]]] = {}
        for number, call in enumerate(self.events.calls):
            program, start = call.program, self.events.starts[number]
            phase = self._stands[number].phase
            key = (id(program), phase)
            if key not in known:
                known[key] = list(_own_lives(program, phase))
            found += [Life(start + born, start + died, n, c) for born, died, n, c in known[key]]
            for ordinal in program.left:
                buffer = program.buffers[ordinal]
                stop, died = self._ends.get((number, ordinal), (len(self.events), ""))
                component = buffer.label.component or by_lifetime(buffer.phase or phase, died)
                found.append(Life(start + buffer.start, stop, buffer.bytes, component))
        return found

    def alive_at(self, number: int, layer: int | None = None) -> list[Allocation]:
        """The buffers that are alive after an event; equal buffers of several layers are one entry.
        With `layer`, only those allocated in the work on that layer."""
        if not self.events.calls:
            return []
        last = self._call_of(number)
        starts, ends = self.events.starts, self._ends
        never = (len(self.events), "")
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
                stop, died = ends.get((index, ordinal), never)
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
        for number in reversed(range(len(self.events.calls))):
            call = self.events.calls[number]
            mark = call.program.steps[0] if call.program.steps else None
            if call.layer == layer and mark and mark[0] == LAYER and mark[4][2] == BACKWARD:
                rises = call.program.rises
                return self.events.starts[number] + rises.index(max(rises))
        return None

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
        """(call, ordinal) -> the event and the phase in which another call frees the buffer."""
        found: dict[tuple[int, int], tuple[int, str]] = {}
        for number, call in enumerate(self.events.calls):
            start, phase = self.events.starts[number], self._stands[number].phase
            for step, owner, ordinal, died in call.program.frees_by_phase:
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
    way = "in the backward of" if steps[0][4][2] == BACKWARD else "in"
    return f"{way} layer {call.layer}"


def _own_lives(program: Program, phase: str) -> Iterator[tuple[int, int, int, Component]]:
    """(first step, step that frees it, bytes, component) of each buffer that a program both
    allocates and frees; `phase` is the phase when it begins."""
    for ordinal, end in program.ends.items():
        buffer = program.buffers[ordinal]
        component = buffer.label.component
        if component is None:
            component = by_lifetime(buffer.phase or phase, program.phase_before(end) or phase)
        yield buffer.start, end, buffer.bytes, component


def read_timeline(events: Sequence[Event]) -> Timeline:
    """The timeline of events.

    Raises ValueError if a buffer is freed that is not alive.
    """
    return Timeline(repeated_events(events))


_STANDING: Final = (Phase.LOAD.value, Phase.PREPARE.value)


@cache
def by_lifetime(born: str, died: str) -> Component:
    """The component of a buffer without one in its label, by the phases in which it was allocated
    and freed; `died` is empty for never."""
    if born == Phase.LOSS:
        return Component.LOSS
    if died == born:
        return Component.TEMPORARIES
    if born in _STANDING:
        return Component.WEIGHTS
    if born == Phase.FORWARD:
        return Component.ACTIVATIONS
    if born == Phase.BACKWARD:
        return Component.GRADIENTS
    return Component.TEMPORARIES


def composition(alive: Sequence[Allocation]) -> dict[Component, int]:
    """Bytes of buffers by component, in the order of the stack."""
    sums: dict[Component, int] = {}
    for allocation in alive:
        component = allocation.component
        sums[component] = sums.get(component, 0) + allocation.copies * allocation.bytes
    return {component: sums[component] for component in STACK if component in sums}
