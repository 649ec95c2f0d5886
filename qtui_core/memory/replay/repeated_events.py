"""The events of a recording in which layers repeat: programs that are called for one layer after
the other.

Only programs are stored. Code that reads events one by one gets them written out, once; code that
works on whole calls (allocator, timeline) reads each program once for all layers of a kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, overload

from qtui_core.memory.replay.folding import Fold
from qtui_core.memory.replay.program import OWN, Program, Step
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREES,
    LAYER,
    OUTSIDE,
    Event,
    Label,
)
from qtui_core.memory.replay.sections import LayerSection, Place, cut


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

    def without(self, kind: int) -> RepeatedEvents:
        """The same events without those of a kind that neither allocates nor frees."""
        return RepeatedEvents(
            [
                call._replace(program=call.program.without(kind))
                if any(step[0] == kind for step in call.program.steps)
                else call
                for call in self.calls
            ]
        )

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


def repeated_events(events: Sequence[Event]) -> RepeatedEvents:
    """Events as calls; if they are not calls yet, each section becomes one call.

    Raises ValueError if a buffer is freed that is not alive.
    """
    if isinstance(events, RepeatedEvents):
        return events
    try:
        sections, places = cut(events)
        caller = Caller((), places)
        for section in sections:
            caller.call(section, 0, last=True)
    except KeyError as error:
        raise ValueError(f"buffer {error} is freed before it is allocated") from None
    found = RepeatedEvents(caller.calls, events)
    freed: set[tuple[int, int]] = set()
    for start, call in zip(found.starts, found.calls, strict=False):
        for step, owner, ordinal in call.program.frees:
            buffer = (call.owners[owner], ordinal)
            if buffer in freed:
                raise ValueError(f"event {start + step} frees a buffer that is not alive")
            freed.add(buffer)
    return found


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


def rows_of(folds: Sequence[Fold]) -> dict[int, Fold]:
    """The fold of each layer that is built."""
    return {layer: row for row in folds for layer in range(row.start, row.start + row.built)}


def is_near(rows: dict[int, Fold], section: LayerSection, place: LayerSection) -> bool:
    """Whether the buffers of `place` that `section` frees belong to a layer at a fixed distance
    (else to one particular layer). So it is if one of the two stands for repeated layers and they
    are at most a period apart."""
    row = rows.get(place.layer)
    if row is None or rows.get(section.layer) is not row:
        return False
    low = row.start + row.template
    return abs(place.layer - section.layer) <= row.period and any(
        low <= layer < low + row.period for layer in (place.layer, section.layer)
    )


#: Whose buffer a section frees: (sweep, distance of the layer, True), (sweep, number among all
#: layers, False), or (OUTSIDE, identity of a section outside of layers, False).
_Owner = tuple[int, int, bool]


class _Compiled(NamedTuple):
    """The programs of a section: that of the last layer it stands for, and that of the others,
    which do not free what all layers share; and the owners of the buffers that are freed."""

    last: Program
    others: Program
    owners: tuple[_Owner, ...]


class Caller:
    """Turns sections into calls.

    Attributes:
        calls: so far.
    """

    def __init__(self, folds: Sequence[Fold], places: dict[Any, Place]) -> None:
        self.calls: list[Call] = []
        self._places = places
        # Calls by sweep and number among all layers, or by OUTSIDE and identity of the section.
        self._found: dict[tuple[int, int], int] = {}
        self._compiled: dict[int, _Compiled] = {}
        self._numbers: dict[int, int] = {}
        self._rows = rows_of(folds)
        added = 0
        for row in folds:
            for layer in range(row.built):
                after = row.added if layer >= row.template + row.period else 0
                self._numbers[row.start + layer] = row.start + layer + added + after
            added += row.added

    def call(self, section: LayerSection, copy: int, *, last: bool) -> None:
        """Calls a section for the layer that is `copy` periods after its own. `last`: it is not
        called again."""
        layer = section.layer
        number = self._numbers.get(layer, layer)
        if copy:
            number += copy * self._rows[layer].period
        self._found[_key(section, number)] = len(self.calls)
        compiled = self._compiled.get(id(section))
        if compiled is None:
            compiled = self._compiled[id(section)] = self._compile(section)
        found = self._found
        owners = tuple(
            [
                found[sweep, number + place] if alike else found[sweep, place]
                for sweep, place, alike in compiled.owners
            ]
        )
        program = compiled.last if last else compiled.others
        self.calls.append(Call(program, number, owners))

    def _compile(self, section: LayerSection) -> _Compiled:
        owners: dict[_Owner, int] = {}
        steps: list[Step] = []
        shared: set[int] = set()
        ordinal = 0
        if section.direction:
            steps.append((LAYER, 0, 0, 0, (LAYER, section.layer, section.direction)))
        for event in section.events:
            kind = event[0]
            if kind == ALLOCATE:
                steps.append((ALLOCATE, OWN, ordinal, event[2], event[3]))
                ordinal += 1
            elif kind in FREES:
                place, other, nbytes = self._places[event[1]]
                if place is section:
                    steps.append((kind, OWN, other, nbytes, None))
                    continue
                near = is_near(self._rows, section, place)
                if not near:
                    shared.add(len(steps))
                if near:
                    owner = (place.sweep, place.layer - section.layer, True)
                else:
                    number = self._numbers.get(place.layer, place.layer)
                    owner = (*_key(place, number), False)
                slot = owners.setdefault(owner, len(owners))
                steps.append((kind, slot, other, nbytes, None))
            else:
                steps.append((kind, 0, 0, 0, event))
        program = others = Program(steps, ordinal)
        if shared and self._rows:
            others = Program([s for n, s in enumerate(steps) if n not in shared], ordinal)
        return _Compiled(program, others, tuple(owners))


def _key(section: LayerSection, number: int) -> tuple[int, int]:
    return (OUTSIDE, id(section)) if section.layer == OUTSIDE else (section.sweep, number)
