"""From events to what is alive after each of them: one pass, from which everything else is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Final, NamedTuple

from qtui_core.dataclass import dataclass
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


#: (first event, bytes, event of the allocation, phase and layer it was in, event of its operation
#: or None): an allocation as it is found, in a tuple because there are tens of thousands of which
#: few are looked at.
Birth = tuple[int, int, Event, str, int, Event | None]
#: (birth, one after the last event, phase that it died in).
Life = tuple[Birth, int, str]


@dataclass(frozen=True)
class Timeline:
    """What one pass over the events of a recording finds.

    Attributes:
        live: bytes alive after each event, each buffer rounded up to 512.
        lives: of all buffers, in the order they were freed, then those that never were.
        spans: the phases, in order.
        events: that it was read from.
    """

    live: list[int]
    lives: list[Life]
    spans: tuple[Span, ...]
    events: Sequence[Event]

    @cached_property
    def allocations(self) -> list[Allocation]:
        """All buffers, in the order of `lives`."""
        return [_allocation(life) for life in self.lives]

    @property
    def peak(self) -> int:
        """The first event after which the most bytes are alive."""
        return self.live.index(max(self.live)) if self.live else 0

    def alive_at(self, number: int) -> list[Allocation]:
        """The buffers that are alive after an event."""
        return [_allocation(life) for life in self.lives if life[0][0] <= number < life[1]]

    def phase_at(self, number: int) -> str:
        """The phase that an event belongs to; empty before the first."""
        return next((s.name for s in self.spans if s.start <= number < s.stop), "")

    def operation_at(self, number: int) -> str:
        """The operation that an event belongs to and where it is, as "mul of mlp, backward of
        layer 31"; empty where nothing says so."""
        begun = next((s.start for s in self.spans if s.start <= number < s.stop), 0)
        entry = self._last(OPERATION, number, begun)
        if entry is None:
            return ""
        _, operation, module = entry
        place = self._where(number)
        return " ".join(
            part for part in (operation, f"of {module}" if module else "", place) if part
        )

    def _where(self, number: int) -> str:
        entry = self._last(LAYER, number, 0)
        if entry is None or entry[1] == OUTSIDE:
            return ""
        _, layer, direction = entry
        return f"in the backward of layer {layer}" if direction == BACKWARD else f"in layer {layer}"

    def _last(self, kind: int, number: int, begun: int) -> Event | None:
        """The last event of a kind at or before an event, none before `begun`."""
        found = (self.events[i] for i in range(number, begun - 1, -1) if self.events[i][0] == kind)
        return next(found, None)


def read_timeline(events: Sequence[Event]) -> Timeline:
    """One pass over events.

    Raises ValueError for events that are no history: a buffer freed that is not alive.
    """
    live: list[int] = []
    done: list[Life] = []
    open_: dict[object, Birth] = {}
    spans: list[tuple[str, int]] = []
    total, phase, layer = 0, "", OUTSIDE
    operation: Event | None = None
    remember, finish, take = live.append, done.append, open_.pop
    number = 0
    try:
        for number, event in enumerate(events):
            kind = event[0]
            if kind == ALLOCATE:
                size = -(-event[2] // 512) * 512
                total += size
                open_[event[1]] = (number, size, event, phase, layer, operation)
            elif kind == FREE:
                birth = take(event[1])
                total -= birth[1]
                finish((birth, number, phase))
            elif kind == OPERATION:
                operation = event
            elif kind == LAYER:
                layer = event[1]
            elif kind == PHASE:
                phase = str(event[1])
                operation = None
                spans.append((phase, number))
            remember(total)
    except KeyError as error:
        raise ValueError(f"event {number} frees buffer {error}, which is not alive") from None
    end = len(events)
    done += [(birth, end, "") for birth in open_.values()]
    bounds = [*(start for _, start in spans), end]
    return Timeline(
        live,
        done,
        tuple(Span(name, start, bounds[i + 1]) for i, (name, start) in enumerate(spans)),
        events,
    )


def component_of(life: Life) -> Component:
    """As labelled, else by its lifetime."""
    (_, _, event, born, _, _), _, died = life
    component: Component | None = event[3].component
    return component or by_lifetime(born, died)


def _allocation(life: Life) -> Allocation:
    (start, size, event, born, layer, made), stop, died = life
    operation, module = ("", "") if made is None else (made[1], made[2])
    return Allocation(start, stop, size, event[2], event[3], born, died, layer, operation, module)


_STANDING: Final = (Phase.LOAD.value, Phase.PREPARE.value)


@cache
def by_lifetime(born: str, died: str) -> Component:
    """The component of a buffer that is not labelled with one, by the phases it was allocated and
    freed in; `died` is empty for never."""
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
        sums[component] = sums.get(component, 0) + allocation.bytes
    return {component: sums[component] for component in STACK if component in sums}
