"""From a recording of few layers to one of all: the events of those that repeat are copied.

In each sweep over the layers (sections.py) the sections of the layers that stand for others are
repeated. A buffer is known by its sweep, its layer, and which allocation of that section it is; a
section that frees a buffer of the layer before it does so in every copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from qtui_core.memory.fold import Fold
from qtui_core.memory.record import ALLOCATE, FREE, LAYER, OPERATION, OUTSIDE, PHASE, Event, rounded
from qtui_core.memory.sections import Place, Section, cut


class NotPeriodic(Exception):
    """Layers that should be alike are not: more of them have to be built."""


def stretch(
    events: Sequence[Event], folds: Sequence[Fold], prefixes: Sequence[str] = ()
) -> tuple[Event, ...]:
    """The events of all layers, from those of the layers that were built.

    Ids are given anew, in order. `prefixes`, one for each fold, are what stands before the numbers
    of layers in names of modules ("model.layers"), where these are not relative to the layer.
    Raises NotPeriodic where layers that should be alike allocate differently.
    """
    if not any(row.copies for row in folds):
        return tuple(events)
    sections, places = cut(events)
    _check(sections, folds)
    writer = _Writer(folds, places, prefixes)
    for group, copies in _groups(sections, folds):
        rising = len(group) < 2 or group[0].layer < group[-1].layer
        if copies and len(group) == 1:
            rising = _rises(sections, group[0])
        for copy in range(copies + 1) if rising else range(copies, -1, -1):
            for section in group:
                writer.write(section, copy)
    return tuple(writer.events)


def peak_levels(events: Sequence[Event], folds: Sequence[Fold]) -> Iterator[tuple[str, int]]:
    """(phase, most bytes alive in it) of all layers, each buffer rounded, for each phase as it
    comes. No event is copied. Raises NotPeriodic as `stretch` does."""
    sections, _ = cut(events)
    _check(sections, folds)
    sizes: dict[int, int] = {}
    live = peak = 0
    phase = ""
    for group, copies in _groups(sections, folds):
        before = top = live
        for section in group:
            for event in section.events:
                kind = event[0]
                if kind == ALLOCATE:
                    size = sizes[event[1]] = rounded(event[2])
                    live += size
                    if live > top:
                        top = live
                elif kind == FREE:
                    live -= sizes[event[1]]
                elif kind == PHASE:
                    if phase:
                        yield phase, max(peak, top)
                    phase = str(event[1])
                    peak = before = top = live
        gained = copies * (live - before)
        peak = max(peak, top, top + gained)
        live += gained
    if phase:
        yield phase, peak


def _groups(
    sections: Sequence[Section], folds: Sequence[Fold]
) -> Iterator[tuple[list[Section], int]]:
    """Sections that are repeated together, with the number of copies; others alone, with none."""
    copies_of = {
        layer: row
        for row in folds
        if row.copies
        for layer in range(row.start + row.template, row.start + row.template + row.period)
    }
    group: list[Section] = []
    row: Fold | None = None
    for section in sections:
        own = copies_of.get(section.layer)
        if group and (own is not row or section.sweep != group[-1].sweep):
            assert row is not None
            yield group, row.copies
            group = []
        row = own
        if own is None:
            yield [section], 0
        else:
            group.append(section)
    if group and row is not None:
        yield group, row.copies


def _rises(sections: Sequence[Section], of: Section) -> bool:
    """Whether the sweep of a section goes up the layers."""
    sweep = [section.layer for section in sections if section.sweep == of.sweep]
    return sweep[0] <= sweep[-1]


def _check(sections: Iterable[Section], folds: Sequence[Fold]) -> None:
    """Raises NotPeriodic where the layer before the repeated ones does not allocate like the last
    of them, or the one after like the first."""
    pairs = {}
    for row in folds:
        if row.copies:
            first = row.start + row.template
            pairs[first - 1] = first + row.period - 1
            pairs[first + row.period] = first
    wanted = {*pairs, *pairs.values()}
    found = {(s.sweep, s.layer): s for s in sections if s.layer in wanted}
    for (sweep, layer), section in found.items():
        like = found.get((sweep, pairs.get(layer, layer)))
        if like is not None and _sizes(section) != _sizes(like):
            raise NotPeriodic(f"layers {layer} and {like.layer} allocate differently")


def _sizes(section: Section) -> list[int]:
    return [event[2] for event in section.events if event[0] == ALLOCATE]


class _Program(NamedTuple):
    """What a section does, for any layer of its kind.

    Attributes:
        steps: (ALLOCATE, ordinal, bytes, label), (FREE, owner, ordinal, None), or (kind, 0, 0,
            event) for other events. Ordinals count from 1; owner -1 is the section itself.
        owners: sections whose buffers are freed: (sweep, layers up from this one, True), or
            (sweep, number among all layers, False).
    """

    steps: list[tuple[int, int, int, Any]]
    owners: tuple[tuple[int, int, bool], ...]


class _Writer:
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
        self._programs: dict[int, _Program] = {}
        self._numbers = {OUTSIDE: OUTSIDE}
        self._rows: dict[int, Fold] = {}
        self._names: dict[int, tuple[str, int]] = {}
        added = 0
        for index, row in enumerate(folds):
            for layer in range(row.built):
                after = row.added if layer >= row.template + row.period else 0
                number = row.start + layer + added + after
                self._numbers[row.start + layer] = number
                self._rows[row.start + layer] = row
                if prefixes and prefixes[index]:
                    self._names[row.start + layer] = (prefixes[index], row.start + added)
            added += row.added

    def write(self, section: Section, copy: int) -> None:
        """The section, for the layer `copy` periods after its own."""
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
            for kind, x, y, z in program.steps
        ]
        renamed = self._renaming(layer, number)
        if renamed is not None:
            events = [
                (OPERATION, e[1], e[2].replace(*renamed)) if e[0] == OPERATION else e
                for e in events
            ]
        self.events += events

    def _program(self, section: Section) -> _Program:
        """The events of a section with ids as (owner, ordinal)."""
        owners: dict[tuple[int, int, bool], int] = {}
        steps: list[tuple[int, int, int, Any]] = []
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
                if place.layer == OUTSIDE:
                    self._bases[OUTSIDE, event[1]] = self._outside[event[1]]
                    owner, other = (OUTSIDE, event[1], False), -1
                elif self._rows[section.layer] is self._rows[place.layer]:
                    owner = (place.sweep, place.layer - section.layer, True)
                else:
                    owner = (place.sweep, self._numbers[place.layer], False)
                steps.append((FREE, owners.setdefault(owner, len(owners)), other + 1, None))
            else:
                steps.append((kind, 0, 0, event))
        return _Program(steps, tuple(owners))

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
