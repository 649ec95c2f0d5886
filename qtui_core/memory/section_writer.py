"""Writes sections of a recording for other layers than the one they were recorded of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qtui_core.memory.fold import Fold
from qtui_core.memory.record import ALLOCATE, FREE, LAYER, OPERATION, OUTSIDE, Event
from qtui_core.memory.sections import Place, Section


def rows_of(folds: Sequence[Fold]) -> dict[int, Fold]:
    """The row of each layer that is built."""
    return {layer: row for row in folds for layer in range(row.start, row.start + row.built)}


def is_near(rows: dict[int, Fold], section: Section, place: Section) -> bool:
    """Whether what `section` frees of `place` is of a layer so many layers up or down, and not of
    one certain layer: so it is where one of both stands for others, and the other is no further
    off than the pattern is long."""
    if place.layer == OUTSIDE or section.layer == OUTSIDE:
        return False
    row = rows[place.layer]
    low = row.start + row.template
    return (
        rows[section.layer] is row
        and abs(place.layer - section.layer) <= row.period
        and any(low <= layer < low + row.period for layer in (place.layer, section.layer))
    )


class Program(NamedTuple):
    """What a section does, for any layer of its kind.

    Attributes:
        steps: (ALLOCATE, ordinal, bytes, label), (FREE, owner, ordinal, None), or (kind, 0, 0,
            event) for other events. Ordinals count from 1; owner -1 is the section itself.
        repeated: the same without what only the last that runs frees.
        owners: sections whose buffers are freed: (sweep, layers up from this one, True), or
            (sweep, number among all layers, False).
    """

    steps: list[tuple[int, int, int, Any]]
    repeated: list[tuple[int, int, int, Any]]
    owners: tuple[tuple[int, int, bool], ...]


class Writer:
    """Writes sections, with new ids."""

    def __init__(
        self, folds: Sequence[Fold], places: dict[int, Place], prefixes: Sequence[str]
    ) -> None:
        self.events: list[Event] = []
        self._places = places
        self._count = 0
        self._outside: dict[int, int] = {}
        # Before the first id of each section, by sweep and number among all layers.
        self._bases: dict[tuple[int, int], int] = {}
        self._programs: dict[int, Program] = {}
        self._numbers = {OUTSIDE: OUTSIDE}
        self._rows = rows_of(folds)
        self._names: dict[int, tuple[str, int]] = {}
        added = 0
        for index, row in enumerate(folds):
            for layer in range(row.built):
                after = row.added if layer >= row.template + row.period else 0
                number = row.start + layer + added + after
                self._numbers[row.start + layer] = number
                if prefixes and prefixes[index]:
                    self._names[row.start + layer] = (prefixes[index], row.start + added)
            added += row.added

    def write(self, section: Section, copy: int, *, last: bool) -> None:
        """The section, for the layer `copy` periods after its own; `last` is whether no more are
        written of it."""
        layer = section.layer
        number = self._numbers[layer]
        if copy:
            number += copy * self._rows[layer].period
        if section.direction:
            self.events.append((LAYER, number, section.direction))
        if layer == OUTSIDE:
            self._write_outside(section)
            return
        program = self._programs.get(id(section))
        if program is None:
            program = self._programs[id(section)] = self._program(section)
        base = self._bases[section.sweep, number] = self._count
        self._count += section.allocations
        bases = self._bases
        before = [
            bases[sweep, number + distance] if alike else bases[sweep, distance]
            for sweep, distance, alike in program.owners
        ]
        before.append(base)
        events: list[Event] = [
            (ALLOCATE, base + x, y, z)
            if kind == ALLOCATE
            else (FREE, before[x] + y)
            if kind == FREE
            else z
            for kind, x, y, z in (program.steps if last else program.repeated)
        ]
        renamed = self._renaming(layer, number)
        if renamed is not None:
            events = [
                (OPERATION, e[1], e[2].replace(*renamed)) if e[0] == OPERATION else e
                for e in events
            ]
        self.events += events

    def _program(self, section: Section) -> Program:
        """The events of a section with ids as (owner, ordinal)."""
        owners: dict[tuple[int, int, bool], int] = {}
        steps: list[tuple[int, int, int, Any]] = []
        shared: set[int] = set()
        ordinal = 0
        for event in section.events:
            kind = event[0]
            if kind == ALLOCATE:
                ordinal += 1
                steps.append((ALLOCATE, ordinal, event[2], event[3]))
            elif kind == FREE:
                place, other = self._places[event[1]]
                if place is section:
                    steps.append((FREE, -1, other + 1, None))
                    continue
                if not is_near(self._rows, section, place):
                    shared.add(len(steps))
                owner = self._owner(section, place, event[1])
                if place.layer == OUTSIDE:
                    other = -1  # the id stands for itself
                steps.append((FREE, owners.setdefault(owner, len(owners)), other + 1, None))
            else:
                steps.append((kind, 0, 0, event))
        repeated = [step for number, step in enumerate(steps) if number not in shared]
        return Program(steps, repeated, tuple(owners))

    def _owner(self, section: Section, place: Section, old: int) -> tuple[int, int, bool]:
        """Whose buffer a section frees, as Program.owners has it."""
        if place.layer == OUTSIDE:
            self._bases[OUTSIDE, old] = self._outside[old]
            return OUTSIDE, old, False
        if is_near(self._rows, section, place):
            return place.sweep, place.layer - section.layer, True
        return place.sweep, self._numbers[place.layer], False

    def _write_outside(self, section: Section) -> None:
        for event in section.events:
            if event[0] == ALLOCATE:
                self._count += 1
                self._outside[event[1]] = self._count
                self.events.append((ALLOCATE, self._count, event[2], event[3]))
            elif event[0] == FREE:
                self.events.append((FREE, self._identity(event[1])))
            else:
                self.events.append(event)

    def _identity(self, old: int) -> int:
        """The new id of a buffer that is freed outside of layers."""
        place, ordinal = self._places[old]
        if place.layer == OUTSIDE:
            return self._outside[old]
        return self._bases[place.sweep, self._numbers[place.layer]] + ordinal + 1

    def _renaming(self, layer: int, number: int) -> tuple[str, str] | None:
        """What stands in names of modules of the layer, and what is to."""
        if layer not in self._names or self._numbers[layer] == number == layer:
            return None
        prefix, start = self._names[layer]
        own = layer - self._rows[layer].start
        return f"{prefix}.{own}.", f"{prefix}.{number - start}."
