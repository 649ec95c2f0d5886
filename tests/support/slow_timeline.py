"""What is alive after each event of a recording, computed event by event. The timeline, which is
computed layer by layer, is compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qtui_core.memory.replay.record import (
    ALLOCATE,
    BACKWARD,
    FREE,
    LAYER,
    OPERATION,
    OUTSIDE,
    PHASE,
    Component,
    Event,
    by_lifetime,
    rounded,
)
from qtui_core.memory.replay.timeline import STACK, Allocation


class BufferLifetime(NamedTuple):
    """A buffer with its lifetime: the numbers of the events that allocate and free it."""

    start: int
    stop: int
    bytes: int
    asked: int
    component: Component
    what: str
    born: str
    died: str
    operation: str
    module: str


def live_after(events: Sequence[Event]) -> list[int]:
    """Bytes alive after each event."""
    sizes: dict[object, int] = {}
    found: list[int] = []
    live = 0
    for event in events:
        if event[0] == ALLOCATE:
            sizes[event[1]] = rounded(event[2])
            live += sizes[event[1]]
        elif event[0] == FREE:
            live -= sizes.pop(event[1])
        found.append(live)
    return found


def live_peak(events: Sequence[Event]) -> int:
    """The most bytes alive after any event."""
    return max(live_after(events), default=0)


def buffers_of(events: Sequence[Event]) -> list[BufferLifetime]:
    """Every buffer, by the event that allocates it."""
    found = []
    ends = {event[1]: number for number, event in enumerate(events) if event[0] == FREE}
    phases: list[str] = []
    phase = ""
    for event in events:
        phase = str(event[1]) if event[0] == PHASE else phase
        phases.append(phase)
    operation: Event | None = None
    for number, event in enumerate(events):
        if event[0] == PHASE:
            operation = None
        elif event[0] == OPERATION:
            operation = event
        elif event[0] == ALLOCATE:
            _, name, nbytes, label = event
            stop = ends.get(name, len(events))
            died = phases[stop] if name in ends else ""
            found.append(
                BufferLifetime(
                    number,
                    stop,
                    rounded(nbytes),
                    nbytes,
                    label.component or by_lifetime(phases[number], died),
                    label.what,
                    phases[number],
                    died,
                    "" if operation is None else operation[1],
                    "" if operation is None else operation[2],
                )
            )
    return found


def operation_at(events: Sequence[Event], number: int) -> str:
    """The operation that an event belongs to, with its place."""
    operation, place = "", ""
    for event in events[: number + 1]:
        if event[0] == PHASE:
            operation = ""
        elif event[0] == OPERATION:
            operation = f"{event[1]} of {event[2]}" if event[2] else event[1]
        elif event[0] == LAYER:
            _, layer, direction = event
            way = "in the backward of" if direction == BACKWARD else "in"
            place = "" if layer == OUTSIDE else f"{way} layer {layer}"
    return " ".join(part for part in (operation, place) if part) if operation else ""


def composition(alive: Sequence[Allocation]) -> dict[Component, int]:
    """Bytes of buffers by component, in the order of the stack."""
    sums: dict[Component, int] = {}
    for allocation in alive:
        component = allocation.component
        sums[component] = sums.get(component, 0) + allocation.copies * allocation.bytes
    return {component: sums[component] for component in STACK if component in sums}
