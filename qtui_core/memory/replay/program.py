"""What a section of a recording does, for any layer of its kind: steps whose buffers have an owner
and an ordinal instead of an id. What follows from the steps is computed once for all such
layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    FREES,
    LAYER,
    OPERATION,
    PHASE,
    Event,
    Label,
)

#: The owner of what the section itself allocates.
OWN: Final = -1

#: (ALLOCATE, OWN, ordinal, bytes, label), (FREE or HOLD_BACK, owner, ordinal, bytes, None), or
#: (kind, 0, 0, 0, event) for other events. An owner is an index of `Call.owners`.
Step = tuple[int, int, int, int, Any]

#: What the allocator does in a step: (bytes, a multiple of 512, OWN, ordinal) allocates, (0, owner,
#: ordinal) frees, (OTHER, number of the step, 0) is anything else.
Move = tuple[int, int, int]
OTHER: Final = -1


class ProgramBuffer(NamedTuple):
    """An allocation of a program.

    Attributes:
        start: the step.
        asked, bytes: as requested, and rounded up to 512.
        label: what it is.
        operation, phase: the last that the program began before it; None if it began none, or no
            operation since its last phase.
    """

    start: int
    asked: int
    bytes: int
    label: Label
    operation: Event | None
    phase: str | None


class Program:
    """Steps, and what follows from them.

    Attributes:
        steps: in order.
        allocations: how many ordinals there are.
        rises: after each step, live bytes less those before the program, each buffer rounded.
        buffers: what it allocates, by ordinal.
        ends: ordinal -> the step that frees it, for its own buffers.
        frees: (step, owner, ordinal) of each buffer of another program that it frees.
        operation: the one that it leaves unfinished; None if none follows its last phase.
        moves: what the allocator does. Buffers of no bytes need nothing.
    """

    def __init__(self, steps: Sequence[Step], allocations: int) -> None:
        self.steps = steps
        self.allocations = allocations
        self.rises: list[int] = []
        self.buffers: list[ProgramBuffer] = []
        self.ends: dict[int, int] = {}
        self.frees: list[tuple[int, int, int]] = []
        self.moves: list[Move] = []
        self.operation: Event | None = None
        self._read()

    def _read(self) -> None:
        buffers: dict[int, ProgramBuffer] = {}
        ends, frees, moves, rises = self.ends, self.frees, self.moves, self.rises
        live = 0
        operation: Event | None = None
        phase: str | None = None
        for number, (kind, owner, ordinal, nbytes, what) in enumerate(self.steps):
            if kind == ALLOCATE:
                size = -(-int(nbytes) // 512) * 512
                live += size
                buffers[ordinal] = ProgramBuffer(number, nbytes, size, what, operation, phase)
                if size:
                    moves.append((size, OWN, ordinal))
            elif kind in FREES:
                live -= -(-int(nbytes) // 512) * 512
                if owner == OWN:
                    if ordinal in ends or ordinal not in buffers:
                        raise ValueError(f"step {number} frees a buffer that is not alive")
                    ends[ordinal] = number
                else:
                    frees.append((number, owner, ordinal))
                if nbytes:
                    moves.append((0, owner, ordinal) if kind == FREE else (OTHER, number, 0))
            elif kind == OPERATION:
                operation = what
            elif kind != LAYER:
                moves.append((OTHER, number, 0))
                if kind == PHASE:
                    operation, phase = None, str(what[1])
            rises.append(live)
        self.operation = operation
        self.buffers = [buffers[ordinal] for ordinal in range(self.allocations)]

    @property
    def net(self) -> int:
        """Live bytes after it less those before it."""
        return self.rises[-1] if self.steps else 0

    @cached_property
    def spans(self) -> list[tuple[str | None, int, int, int]]:
        """(phase, first step, the most bytes above those before the program, step of that maximum)
        of the phases that begin in it. Steps before the first phase come first, with None for the
        phase."""
        marks = [n for n, step in enumerate(self.steps) if step[0] == PHASE]
        found: list[tuple[str | None, int, int, int]] = []
        for low, high in pairwise((0, *marks, len(self.steps))):
            if low == high:
                continue
            part = self.rises[low:high]
            most = max(part)
            name = str(self.steps[low][4][1]) if self.steps[low][0] == PHASE else None
            found.append((name, low, most, low + part.index(most)))
        return found

    @cached_property
    def left(self) -> list[int]:
        """Ordinals of the buffers that it does not free."""
        return [ordinal for ordinal in range(self.allocations) if ordinal not in self.ends]

    @cached_property
    def frees_by_phase(self) -> list[tuple[int, int, int, str | None]]:
        """`frees`, each with the last phase that the program began before it; None if it began
        none."""
        return [(*free, self.phase_before(free[0])) for free in self.frees]

    def phase_before(self, step: int) -> str | None:
        """The last phase that the program began up to a step; None if it began none."""
        return next((name for name, low, *_ in reversed(self.spans) if low <= step), None)

    def without(self, kind: int) -> Program:
        """The same program without steps of a kind that neither allocates nor frees."""
        return Program([step for step in self.steps if step[0] != kind], self.allocations)

    def inserted(self, after: int, nbytes: int, label: Label, *, freed: bool = False) -> Program:
        """The same program with one more buffer, allocated after a step, and `freed` at once or
        never."""
        own = self.allocations
        more: list[Step] = [(ALLOCATE, OWN, own, nbytes, label)]
        if freed:
            more.append((FREE, OWN, own, nbytes, None))
        steps = [*self.steps[: after + 1], *more, *self.steps[after + 1 :]]
        return Program(steps, own + 1)
