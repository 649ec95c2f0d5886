"""From events to what is alive after each of them: one pass, from which everything else is read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from qtui_core.memory.record import (
    ALLOCATE,
    BACKWARD,
    FREE,
    LAYER,
    OPERATION,
    OUTSIDE,
    PHASE,
    Component,
    Event,
    Label,
    Phase,
)

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

#: What a mark of a timeline is: the event number first.
Entry = TypeVar("Entry", bound=tuple[Any, ...])


class Allocation(NamedTuple):
    """A buffer's life.

    Attributes:
        start, stop: it is alive after the events start <= number < stop.
        bytes: that it takes, rounded up to 512 as CUDA's allocator does.
        asked: bytes before that.
        label: what it is.
        born, died: phases of its first and last event; `died` is empty where it is never freed.
        layer: that was at work when it was allocated; OUTSIDE for none.
        operation, module: that it was allocated in; empty where nothing says so.
    """

    start: int
    stop: int
    bytes: int
    asked: int
    label: Label
    born: str
    died: str
    layer: int
    operation: str
    module: str

    @property
    def component(self) -> Component:
        """As labelled, else by its lifetime."""
        return self.label.component or by_lifetime(self.born, self.died)


@dataclass(frozen=True)
class Span:
    """A phase as it happened: its events are start <= number < stop."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Timeline:
    """What one pass over the events of a recording finds.

    Attributes:
        live: bytes alive after each event, each buffer rounded up to 512.
        allocations: all buffers, in the order they were freed, then those that never were.
        spans: the phases, in order.
        operations: (event number, operation, module), in order.
        layers: (event number, layer, direction), in order.
    """

    live: list[int]
    allocations: list[Allocation]
    spans: tuple[Span, ...]
    operations: list[tuple[int, str, str]]
    layers: list[tuple[int, int, str]]

    @property
    def peak(self) -> int:
        """The first event after which the most bytes are alive."""
        return self.live.index(max(self.live)) if self.live else 0

    def alive_at(self, number: int) -> list[Allocation]:
        """The buffers that are alive after an event."""
        return [a for a in self.allocations if a[0] <= number < a[1]]

    def phase_at(self, number: int) -> str:
        """The phase that an event belongs to; empty before the first."""
        return next((s.name for s in self.spans if s.start <= number < s.stop), "")

    def operation_at(self, number: int) -> str:
        """The operation that an event belongs to and where it is, as "mul of mlp, backward of
        layer 31"; empty where nothing says so."""
        entry = _last(self.operations, number)
        begun = next((s.start for s in self.spans if s.start <= number < s.stop), 0)
        if entry is None or entry[0] < begun:
            return ""
        _, operation, module = entry
        place = self._where(number)
        return " ".join(
            part for part in (operation, f"of {module}" if module else "", place) if part
        )

    def _where(self, number: int) -> str:
        entry = _last(self.layers, number)
        if entry is None or entry[1] == OUTSIDE:
            return ""
        _, layer, direction = entry
        return f"in the backward of layer {layer}" if direction == BACKWARD else f"in layer {layer}"


def read_timeline(events: Sequence[Event]) -> Timeline:
    """One pass over events.

    Raises ValueError for events that are no history: a buffer freed that is not alive.
    """
    live: list[int] = []
    done: list[Allocation] = []
    open_: dict[object, tuple[int, int, int, Label, str, int, str, str]] = {}
    spans: list[tuple[str, int]] = []
    operations: list[tuple[int, str, str]] = []
    layers: list[tuple[int, int, str]] = []
    total, phase, layer = 0, "", OUTSIDE
    operation = module = ""
    remember, finish, take = live.append, done.append, open_.pop
    for number, event in enumerate(events):
        kind = event[0]
        if kind == ALLOCATE:
            size = -(-event[2] // 512) * 512
            total += size
            open_[event[1]] = (
                number, size, event[2], event[3], phase, layer, operation, module,
            )  # fmt: skip
        elif kind == FREE:
            begun = take(event[1], None)
            if begun is None:
                raise ValueError(f"event {number} frees buffer {event[1]}, which is not alive")
            start, size, asked, label, born, where, name, place = begun
            total -= size
            finish(Allocation(start, number, size, asked, label, born, phase, where, name, place))
        elif kind == OPERATION:
            _, operation, module = event
            operations.append((number, operation, module))
        elif kind == LAYER:
            layer = event[1]
            layers.append((number, layer, event[2]))
        elif kind == PHASE:
            phase = str(event[1])
            operation = module = ""
            spans.append((phase, number))
        remember(total)
    end = len(events)
    for start, size, asked, label, born, where, name, place in open_.values():
        finish(Allocation(start, end, size, asked, label, born, "", where, name, place))
    bounds = [*(start for _, start in spans), end]
    return Timeline(
        live,
        done,
        tuple(Span(name, start, bounds[i + 1]) for i, (name, start) in enumerate(spans)),
        operations,
        layers,
    )


_STANDING: Final = (Phase.LOAD.value, Phase.PREPARE.value)


@cache
def by_lifetime(born: str, died: str) -> Component:
    """The component of a buffer that is not labelled with one, by the phases it was allocated and
    freed in; `died` is empty for never."""
    if died == born:
        return Component.TEMPORARIES
    if born in _STANDING:
        return Component.WEIGHTS
    if born == Phase.FORWARD:
        return Component.ACTIVATIONS
    if born == Phase.LOSS:
        return Component.ACTIVATIONS if died == Phase.BACKWARD else Component.LOSS
    if born == Phase.BACKWARD:
        return Component.GRADIENTS
    return Component.TEMPORARIES


def composition(alive: Sequence[Allocation]) -> dict[Component, int]:
    """Bytes of buffers by component, in the order of the stack."""
    sums: dict[Component, int] = {}
    for allocation in alive:
        component = allocation.component
        sums[component] = sums.get(component, 0) + allocation.bytes
    return {component: sums[component] for component in STACK if component in sums}


def _last(entries: list[Entry], number: int) -> Entry | None:
    """The last entry at or before an event."""
    index = bisect_right(entries, number, key=itemgetter(0))
    return entries[index - 1] if index else None
