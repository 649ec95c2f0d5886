"""Compares two recordings of one run, of an estimate and of a trace, allocation by allocation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

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


class TracedAllocation(NamedTuple):
    """One allocation of a step: its bytes as requested; the bytes alive after it, rounded as the
    allocator does, less those alive when the first step began; what and where it is."""

    bytes: int
    live: int
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {self.bytes:,} bytes, {self.live:,} alive"


def first_difference(a: Recording, b: Recording, smallest: int = 0) -> str | None:
    """The first allocation, in order, whose bytes differ or before which something else was freed,
    in words; None if the recordings agree.

    Not compared are what is alive when the first step begins (see `standing_bytes`) and allocations
    below `smallest` bytes; of the optimizer's allocations only those that remain are.
    """
    last = None
    pairs = zip_longest(allocations(a, smallest), allocations(b, smallest))
    for index, (one, other) in enumerate(pairs):
        if one is None or other is None or one[:2] != other[:2]:
            return (
                f"After {index:,} allocations that agree (the last: {last or 'none'}) one has "
                f"{one or 'no more'}; the other {other or 'no more'}."
            )
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
                where = f" of {module}" * bool(module)
                at = f", layer {layer}" * (layer != OUTSIDE)
                yield TracedAllocation(
                    event[2],
                    live,
                    f"{event[3].what} in {operation or 'no operation'}{where} "
                    f"({phase} {phases[phase]}{at})",
                )
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
