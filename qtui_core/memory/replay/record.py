"""The format of recordings: what is allocated and freed, in order. The estimate writes one from a
shape, the trace from a real model on fake tensors; allocator, curve and report read it.

A recording is a list of events; they are plain tuples because there are tens of thousands:

    (ALLOCATE, id, bytes, label)     bytes as requested, before any rounding
    (FREE, id)
    (PHASE, name)                    a phase begins
    (LAYER, index, direction)        work on layer `index` begins, FORWARD or BACKWARD; index -1 is
                                     what comes before, between and after layers
    (OPERATION, name, module)        the operation that the following events belong to
    (EMPTY_CACHE,)                   torch.cuda.empty_cache(): the allocator gives back unused
                                     memory; live tensors do not change

one that only a tape writes that builds few turns of a loop; folding.py reads it:

    (TURN, index, more)              a turn of a loop in a layer begins; one stands for `more`
                                     others; index -1 is what comes between loops

and two that only the allocator gets:

    (HOLD_BACK, id)                  the buffer counts as freed, but its memory is not reused
    (HAND_BACK,)                     until this event, or until the device is full

Ids are unique in a recording. What is alive when the step begins (weights, optimizer states) is
allocated in the phases "load", "prepare" and "optimizer" of the step before.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, StrEnum
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, overload

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import factors_of, product_of

ALLOCATE: Final = 0
FREE: Final = 1
PHASE: Final = 2
LAYER: Final = 3
OPERATION: Final = 4
EMPTY_CACHE: Final = 5
HOLD_BACK: Final = 6
HAND_BACK: Final = 7
TURN: Final = 8
#: Events that end the life of a buffer.
FREES: Final = (FREE, HOLD_BACK)

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OUTSIDE: Final = -1

Event = tuple[Any, ...]


class Phase(StrEnum):
    """Phases of a run, in order. The last five are a step."""

    LOAD = "load"
    PREPARE = "prepare"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    BETWEEN = "between steps"


class Component(Enum):
    """What bytes are for, in the order in which they are stacked: what stays lies below what comes
    and goes."""

    WEIGHTS = "weights"
    QUANTIZATION = "quantization constants"
    ADAPTERS = "adapters"
    BUFFERS = "buffers"
    WORKSPACES = "workspaces"
    OPTIMIZER = "optimizer states"
    CACHE = "key-value cache"
    GRADIENTS = "gradients"
    INPUTS = "inputs"
    ACTIVATIONS = "activations"
    LOSS = "loss"
    TEMPORARIES = "temporaries"


#: What stays from one step to the next.
RESIDENT: Final = frozenset(
    (
        Component.WEIGHTS,
        Component.QUANTIZATION,
        Component.ADAPTERS,
        Component.BUFFERS,
        Component.OPTIMIZER,
        Component.WORKSPACES,
    )
)


class Label(NamedTuple):
    """What an allocation is. If `component` is None, its lifetime decides: what a forward pass
    keeps for the backward pass is an activation, what a backward pass leaves for the optimizer a
    gradient, anything else a temporary."""

    what: str
    component: Component | None = None


@dataclass(frozen=True)
class Recording:
    """Events of a run, from loading the model through its steps.

    Attributes:
        events: in order.
        origin: "tape" or "trace".
        paged_bytes: of optimizer states that the driver may move to the host.
        steady: whether its first step is like all later ones.
    """

    events: Sequence[Event]
    origin: str
    paged_bytes: int = 0
    steady: bool = False


def rounded(nbytes: int) -> int:
    """Bytes that the CUDA allocator takes for a tensor: a multiple of 512 (kMinBlockSize in
    c10/core/AllocatorConfig.h)."""
    return -(-int(nbytes) // 512) * 512


# ---------------------------------------------------------------------- as JSON, in files

#: The most recordings in a folder; each takes some 100 kB.
_MOST: Final = 100


def written(recording: Recording) -> dict[str, Any]:
    """The recording as plain values."""
    return {"events": [_written(event) for event in recording.events], "origin": recording.origin}


def read(found: Mapping[str, Any]) -> Recording:
    """The recording of plain values. Raises KeyError, TypeError or ValueError for others."""
    return Recording(tuple(_read(event) for event in found["events"]), found["origin"])


def known(path: Path) -> Recording | None:
    """The recording in a file; None without one, or if the file was cut or changed."""
    try:
        return read(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        return None  # it is made, or made anew


def keep(path: Path, text: str) -> None:
    """Keeps the JSON of a recording; drops the oldest ones. Where a disk is full or closed nothing
    is kept, and the next time takes as long."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
        os.replace(beside, path)
        oldest = sorted(path.parent.glob("*.gz"), key=lambda each: each.stat().st_mtime)
        for each in oldest[:-_MOST]:
            each.unlink()


def _written(event: Event) -> list[Any]:
    if event[0] != ALLOCATE:
        return list(event)
    label: Label = event[3]
    component = label.component and label.component.value
    return [*event[:3], label.what, component, factors_of(event[2])]


def _read(event: list[Any]) -> Event:
    if event[0] != ALLOCATE:
        return tuple(event)
    kind, number, nbytes, what, component, factors = event
    size = product_of(factors) if factors else nbytes
    return (kind, number, size, Label(what, component and Component(component)))


# ---------------------------------------------------------------------- programs
# The events of a recording in which layers repeat: programs that are called for one layer after the
# other. A program is what a section of a recording does, for any layer of its kind: steps whose
# buffers have an owner and an ordinal instead of an id. Only programs are stored. Code that reads
# events one by one gets them written out, once; code that works on whole calls (allocator.py,
# timeline.py) reads each program once for all layers of a kind.

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
    """Steps, and what follows from them, each computed when it is first asked for.

    Attributes:
        steps: in order.
        allocations: how many ordinals there are.
        rises: after each step, live bytes less those before the program, each buffer rounded.
    """

    def __init__(self, steps: Sequence[Step], allocations: int) -> None:
        self.steps = steps
        self.allocations = allocations
        self.rises: list[int] = []
        live = 0
        for kind, _, _, nbytes, _ in steps:
            if kind == ALLOCATE:
                live += -(-int(nbytes) // 512) * 512
            elif kind in FREES:
                live -= -(-int(nbytes) // 512) * 512
            self.rises.append(live)

    @cached_property
    def buffers(self) -> list[ProgramBuffer]:
        """What it allocates, by ordinal."""
        found: dict[int, ProgramBuffer] = {}
        operation, phase = None, None
        for number, (kind, _, ordinal, nbytes, what) in enumerate(self.steps):
            if kind == ALLOCATE:
                size = rounded(nbytes)
                found[ordinal] = ProgramBuffer(number, nbytes, size, what, operation, phase)
            elif kind == OPERATION:
                operation = what
            elif kind == PHASE:
                operation, phase = None, str(what[1])
        return [found[ordinal] for ordinal in range(self.allocations)]

    @cached_property
    def ends(self) -> dict[int, int]:
        """Ordinal -> the step that frees it, for its own buffers."""
        steps = enumerate(self.steps)
        return {step[2]: n for n, step in steps if step[0] in FREES and step[1] == OWN}

    @cached_property
    def frees(self) -> list[tuple[int, int, int, str | None]]:
        """(step, owner, ordinal) of each buffer of another program that it frees, with the last
        phase that the program began before it; None if it began none."""
        frees = [(n, *s[1:3]) for n, s in enumerate(self.steps) if s[0] in FREES and s[1] != OWN]
        return [(*free, self.phase_before(free[0])) for free in frees]

    @cached_property
    def moves(self) -> list[Move]:
        """What the allocator does. Buffers of no bytes need nothing."""
        found: list[Move] = []
        for number, (kind, owner, ordinal, nbytes, _) in enumerate(self.steps):
            if kind == ALLOCATE and nbytes:
                found.append((rounded(nbytes), OWN, ordinal))
            elif kind == FREE and nbytes:
                found.append((0, owner, ordinal))
            elif kind not in (ALLOCATE, FREE, OPERATION, LAYER) and (kind != HOLD_BACK or nbytes):
                found.append((OTHER, number, 0))
        return found

    @cached_property
    def operation(self) -> Event | None:
        """The one that it leaves unfinished; None if none follows its last phase."""
        last = (step for step in reversed(self.steps) if step[0] in (OPERATION, PHASE))
        step = next(last, None)
        return step[4] if step is not None and step[0] == OPERATION else None

    def component(self, ordinal: int, phase: str, died: str) -> Component:
        """The component of a buffer, if the program begins in `phase` and it is freed in `died`."""
        buffer = self.buffers[ordinal]
        return buffer.label.component or by_lifetime(buffer.phase or phase, died)

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

    def phase_before(self, step: int) -> str | None:
        """The last phase that the program began up to a step; None if it began none."""
        return next((name for name, low, *_ in reversed(self.spans) if low <= step), None)

    def inserted(self, after: int, nbytes: int, label: Label, *, freed: bool = False) -> Program:
        """The same program with one more buffer, allocated after a step, and `freed` at once or
        never."""
        own = self.allocations
        more: list[Step] = [(ALLOCATE, OWN, own, nbytes, label)]
        if freed:
            more.append((FREE, OWN, own, nbytes, None))
        steps = [*self.steps[: after + 1], *more, *self.steps[after + 1 :]]
        return Program(steps, own + 1)


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
    return Component.GRADIENTS if born == Phase.BACKWARD else Component.TEMPORARIES


class Call(NamedTuple):
    """One execution of a program.

    Attributes:
        program: what is executed.
        layer: the number, among all layers, of the layer that it is for; OUTSIDE for none.
        owners: the numbers of the calls whose buffers it frees.
    """

    program: Program
    layer: int
    owners: tuple[int, ...]


class RepeatedEvents(Sequence[Event]):
    """The events of calls, in order. Ids count buffers from 1, call by call, unless the calls were
    made from given events.

    Attributes:
        calls: in order.
    """

    def __init__(self, calls: Sequence[Call], events: Sequence[Event] | None = None) -> None:
        self.calls = calls
        self._events = events

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first event of each call and, last, the number of all events."""
        return list(accumulate((len(c.program.steps) for c in self.calls), initial=0))

    @property
    def written(self) -> Sequence[Event]:
        """The events themselves, written out at the first request."""
        if self._events is None:
            self._events = self._write()
        return self._events

    def _write(self) -> Sequence[Event]:
        found: list[Event] = []
        bases: list[int] = []
        count = 1
        for call in self.calls:
            bases.append(count)
            found += _events_of(call, [*(bases[owner] for owner in call.owners), count])
            count += call.program.allocations
        return tuple(found)

    def inserted(
        self, call: int, after: int, nbytes: int, label: Label, *, freed: bool = False
    ) -> RepeatedEvents:
        """The same events with one more buffer, allocated after a step of a call, and `freed` at
        once or never."""
        old = self.calls[call]
        changed = old._replace(program=old.program.inserted(after, nbytes, label, freed=freed))
        return RepeatedEvents([*self.calls[:call], changed, *self.calls[call + 1 :]])

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self.written[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.written)

    def __len__(self) -> int:
        return self.starts[-1]


def _events_of(call: Call, bases: Sequence[int]) -> list[Event]:
    """The events of a call. `bases` are the first ids of the owners' buffers and, last, of its
    own."""
    own = bases[OWN]
    events: list[Event] = [
        (ALLOCATE, own + x, y, z)
        if kind == ALLOCATE
        else (kind, bases[owner] + x)
        if kind in FREES
        else z
        for kind, owner, x, y, z in call.program.steps
    ]
    if events and events[0][0] == LAYER:
        events[0] = (LAYER, call.layer, events[0][2])
    return events
