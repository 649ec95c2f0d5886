"""What a section of a recording does, for any layer of its kind: steps in which buffers have no ids
but an owner and an ordinal. What is read of the steps is worked out once for all such layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from qtui_core.memory.record import ALLOCATE, FREE, FREES, OPERATION, PHASE, Event, Label

#: Owner of what the section itself allocates.
OWN: Final = -1

#: (ALLOCATE, OWN, ordinal, bytes, label), (FREE or HOLD_BACK, owner, ordinal, bytes, None), or
#: (kind, 0, 0, 0, event) for other events. An owner is a place in `Call.owners`.
Step = tuple[int, int, int, int, Any]

#: What an allocator does of a step: (bytes in whole 512, OWN, ordinal) takes memory, (0, owner,
#: ordinal) gives it back, (OTHER, number of the step, kind) is anything else.
Move = tuple[int, int, int]
OTHER: Final = -1


class Buffer(NamedTuple):
    """An allocation of a program.

    Attributes:
        start: the step.
        asked, bytes: as asked for, and rounded up to 512.
        label: what it is.
        operation, phase: begun last before it in the program; None where that was before.
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
        allocations: how many ordinals are given out.
    """

    def __init__(self, steps: Sequence[Step], allocations: int) -> None:
        self.steps = steps
        self.allocations = allocations

    @cached_property
    def rises(self) -> list[int]:
        """Bytes more than before the program, after each step, each buffer rounded."""
        live = 0
        found = []
        for kind, _, _, nbytes, _ in self.steps:
            if kind == ALLOCATE:
                live += -(-nbytes // 512) * 512
            elif kind in FREES:
                live -= -(-nbytes // 512) * 512
            found.append(live)
        return found

    @property
    def net(self) -> int:
        """Bytes more after it than before it."""
        return self.rises[-1] if self.steps else 0

    @cached_property
    def spans(self) -> list[tuple[str | None, int, int, int]]:
        """(phase, first step, most bytes more than before the program, step of that) of the phases
        that begin in it, after what comes before them, which has no name and may be empty."""
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
    def buffers(self) -> list[Buffer]:
        """By ordinal."""
        found: dict[int, Buffer] = {}
        operation, phase = None, None
        for number, (kind, _, ordinal, nbytes, what) in enumerate(self.steps):
            if kind == ALLOCATE:
                size = -(-nbytes // 512) * 512
                found[ordinal] = Buffer(number, nbytes, size, what, operation, phase)
            elif kind == OPERATION:
                operation = what
            elif kind == PHASE:
                operation, phase = None, str(what[1])
        return [found[ordinal] for ordinal in range(self.allocations)]

    @cached_property
    def ends(self) -> dict[int, int]:
        """Ordinal -> the step that frees it, of its own buffers.

        Raises ValueError for steps that are no history: one is freed that is not alive.
        """
        found: dict[int, int] = {}
        for number, (kind, owner, ordinal, _, _) in enumerate(self.steps):
            if kind in FREES and owner == OWN:
                if ordinal in found or self.buffers[ordinal].start > number:
                    raise ValueError(f"step {number} frees a buffer that is not alive")
                found[ordinal] = number
        return found

    @cached_property
    def left(self) -> list[int]:
        """Ordinals of the buffers that it does not free."""
        return [ordinal for ordinal in range(self.allocations) if ordinal not in self.ends]

    @cached_property
    def frees(self) -> list[tuple[int, int, int]]:
        """(step, owner, ordinal) of each buffer of another program that it frees."""
        return [
            (number, owner, ordinal)
            for number, (kind, owner, ordinal, _, _) in enumerate(self.steps)
            if kind in FREES and owner != OWN
        ]

    @cached_property
    def moves(self) -> list[Move]:
        """What an allocator does. Buffers of no bytes take nothing, and operations are skipped."""
        found: list[Move] = []
        for number, (kind, owner, ordinal, nbytes, _) in enumerate(self.steps):
            if kind == ALLOCATE:
                if nbytes:
                    found.append((-(-nbytes // 512) * 512, OWN, ordinal))
            elif kind == FREE:
                if nbytes:
                    found.append((0, owner, ordinal))
            elif kind != OPERATION:
                found.append((OTHER, number, kind))
        return found

    @cached_property
    def operation(self) -> Event | None:
        """The operation that it leaves begun; None where no operation follows its last phase."""
        for kind, _, _, _, event in reversed(self.steps):
            if kind == OPERATION:
                return tuple(event)
            if kind == PHASE:
                return None
        return None

    def phase_before(self, step: int) -> str | None:
        """The phase that the program last began up to a step."""
        return next((name for name, low, *_ in reversed(self.spans) if low <= step), None)

    def inserted(self, after: int, nbytes: int, label: Label, *, freed: bool = False) -> Program:
        """The same with one more buffer, allocated after a step, and `freed` at once or never."""
        own = self.allocations
        more: list[Step] = [(ALLOCATE, OWN, own, nbytes, label)]
        if freed:
            more.append((FREE, OWN, own, nbytes, None))
        steps = [*self.steps[: after + 1], *more, *self.steps[after + 1 :]]
        return Program(steps, own + 1)
