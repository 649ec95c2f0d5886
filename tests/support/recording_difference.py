"""Compares two recordings of one run, allocation by allocation.

The recordings of an estimate and of a trace have the same form. Imports only the standard library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    LAYER,
    OPERATION,
    OUTSIDE,
    PHASE,
    Phase,
    Recording,
    rounded,
)

#: Phases whose allocations may come in any order: they make what exists when a step begins.
_STANDING = (Phase.LOAD.value, Phase.PREPARE.value)
_UNORDERED = ("", *_STANDING, Phase.OPTIMIZER.value)


@dataclass(frozen=True)
class TracedAllocation:
    """One allocation of a step, and what is alive when it is made.

    Attributes:
        phase: with a number for its occurrence, as "forward 2".
        layer: the current layer, OUTSIDE for none.
        operation, module: in which it was made, empty if unknown.
        what: its label.
        bytes: as requested.
        live: bytes alive after it, rounded as the allocator does, less those alive when the first
            step began.
    """

    phase: str
    layer: int
    operation: str
    module: str
    what: str
    bytes: int
    live: int

    def __str__(self) -> str:
        where = f" of {self.module}" if self.module else ""
        layer = f", layer {self.layer}" if self.layer != OUTSIDE else ""
        return (
            f"{self.what} in {self.operation or 'no operation'}{where} ({self.phase}{layer}): "
            f"{self.bytes:,} bytes, {self.live:,} alive"
        )


@dataclass(frozen=True)
class FirstDifference:
    """The first allocation in which two recordings differ.

    Attributes:
        index: how many allocations of the steps agree before it.
        first, second: of the two recordings; None if one of them has ended.
        last: the last allocation that agrees.
    """

    index: int
    first: TracedAllocation | None
    second: TracedAllocation | None
    last: TracedAllocation | None

    def __str__(self) -> str:
        return (
            f"After {self.index:,} allocations that agree (the last: {self.last or 'none'}) one "
            f"has {self.first or 'no more'}; the other {self.second or 'no more'}."
        )


def first_difference(a: Recording, b: Recording, smallest: int = 0) -> FirstDifference | None:
    """The first allocation, in order, whose bytes differ or before which something else was freed;
    None if the recordings agree.

    Not compared are what is alive when the first step begins (see `standing_bytes`) and allocations
    below `smallest` bytes; of the optimizer's allocations only those that remain are.
    """
    last = None
    pairs = zip_longest(allocations(a, smallest), allocations(b, smallest))
    for index, (one, other) in enumerate(pairs):
        if one is None or other is None or (one.bytes, one.live) != (other.bytes, other.live):
            return FirstDifference(index, one, other, last)
        last = one
    return None


def allocations(recording: Recording, smallest: int = 0) -> Iterator[TracedAllocation]:
    """Allocations of the steps in order, without those of the optimizer."""
    phases: Counter[str] = Counter()
    sizes: dict[int, int] = {}
    phase, layer, operation, module = "", OUTSIDE, "", ""
    live = 0
    for event in recording.events:
        kind = event[0]
        if kind == ALLOCATE:
            size = rounded(event[2]) if event[2] >= smallest else 0
            sizes[event[1]] = size
            live += size
            if phase not in _UNORDERED and event[2] >= smallest:
                yield TracedAllocation(
                    f"{phase} {phases[phase]}",
                    layer, operation, module, event[3].what, event[2], live,
                )  # fmt: skip
        elif kind == FREE:
            live -= sizes.pop(event[1])
        elif kind == LAYER:
            layer = event[1]
        elif kind == OPERATION:
            operation, module = event[1], event[2]
        elif kind == PHASE:
            if phase in ("", *_STANDING) and event[1] not in _STANDING:
                live = 0  # what is alive before the step is compared separately
            phase = str(event[1])
            phases[phase] += 1
            operation, module = "", ""


def standing_bytes(recording: Recording) -> int:
    """Rounded bytes alive when the first step begins."""
    sizes: dict[int, int] = {}
    for event in recording.events:
        if event[0] == ALLOCATE:
            sizes[event[1]] = rounded(event[2])
        elif event[0] == FREE:
            del sizes[event[1]]
        elif event[0] == PHASE and event[1] not in _STANDING:
            break
    return sum(sizes.values())


def peaks(recording: Recording) -> dict[str, int]:
    """The most bytes alive, rounded, in each phase, as {"forward 1": ...}."""
    found: dict[str, int] = {}
    phases: Counter[str] = Counter()
    sizes: dict[int, int] = {}
    name, live = "", 0
    for event in recording.events:
        if event[0] == PHASE:
            phases[event[1]] += 1
            name = f"{event[1]} {phases[event[1]]}"
            found[name] = live
        elif event[0] == ALLOCATE:
            live += sizes.setdefault(event[1], rounded(event[2]))
            found[name] = max(found.get(name, 0), live)
        elif event[0] == FREE:
            live -= sizes.pop(event[1])
    return found
