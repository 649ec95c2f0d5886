"""A recording of all layers from one of few: the first, one period of a repeating pattern with its
neighbours, the last.

In each sweep over the layers, the sections of the layers that stand for others are called again. A
buffer is identified by its sweep, its layer and its ordinal in that section; a section that frees a
buffer of the layer before does so in every call. What all layers share, made outside of them or in
a distant layer, is freed by the last one that runs.

Long loops in a layer are folded alike: of their turns few are built, the third stands for the
others, and a buffer is identified by its turn, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    FREES,
    LAYER,
    OUTSIDE,
    OWN,
    PHASE,
    TURN,
    Call,
    Event,
    Program,
    RepeatedEvents,
    Step,
)
from qtui_core.memory.shape.model_shape import Layer, ModelShape

#: The longest pattern that is looked for; Gemma 3 repeats six layers.
_LONGEST_PERIOD: Final = 12
#: The turn of a loop that stands for others. Those beside it must allocate alike.
_TEMPLATE: Final = 2
#: Events with which a section begins.
_MARKS: Final = (LAYER, TURN, PHASE)


@dataclass(frozen=True)
class Fold:
    """How a row of layers is represented by fewer, `built` of them.

    The layers that are built have numbers from `start` on (in a trace those of an encoder precede
    those of a decoder). The `period` layers from `template` on stand for `copies` further periods,
    which follow directly after them.
    """

    start: int
    built: int
    template: int
    period: int
    copies: int

    @property
    def added(self) -> int:
        """Layers that are not built."""
        return self.copies * self.period


def fold(shape: ModelShape, margin: int = 1) -> tuple[ModelShape, Fold]:
    """The shape with as few layers as show the pattern, and how its layers were folded.

    `margin` is how many layers are built before and after those that stand for others, besides the
    first. They must allocate like those that are left out.
    """
    layers = shape.layers
    template, period, copies = pattern_of(kinds_of(layers), margin)
    row = Fold(0, len(layers) - copies * period, template, period, copies)
    kept = layers[: template + period] + layers[template + period * (1 + copies) :]
    return replace(shape, layers=kept) if copies else shape, row


def kinds_of(layers: Sequence[Layer]) -> list[int]:
    """A number for each layer, the same for equal layers."""
    known: dict[int, int] = {}
    distinct: list[Layer] = []
    for layer in layers:
        if id(layer) not in known:
            if layer not in distinct:
                distinct.append(layer)
            known[id(layer)] = distinct.index(layer)
    return [known[id(layer)] for layer in layers]


def pattern_of(kinds: Sequence[int], margin: int) -> tuple[int, int, int]:
    """(template, period, copies) that leaves the fewest layers to build."""
    best = (0, 1, 0)
    for period in range(1, min(_LONGEST_PERIOD, len(kinds) - 1) + 1):
        for low, high in _runs(kinds, period):
            # The first layer never repeats: its input may need no gradient.
            template = max(low, 1) + margin
            copies = (high - template - margin) // period - 1
            if copies > 0 and copies * period > best[1] * best[2]:
                best = (template, period, copies)
    return best


def _runs(kinds: Sequence[int], period: int) -> list[tuple[int, int]]:
    """Ranges low <= index < high that repeat with `period`: each kind equals the kind `period`
    places later."""
    runs = []
    low = 0
    for index in range(len(kinds)):
        if index + period >= len(kinds) or kinds[index] != kinds[index + period]:
            if index > low:
                runs.append((low, min(index + period, len(kinds))))
            low = index + 1
    return runs


@dataclass(eq=False)
class LayerSection:
    """What happens for one layer in one sweep, or for no layer. A loop divides it into what comes
    before it, each of its turns, and what comes after it.

    Attributes:
        sweep: number of the sweep; OUTSIDE for no layer.
        layer: its layer; OUTSIDE for none.
        part: how many loops have begun and ended before it in the sweep and layer.
        turn: of those that are built; OUTSIDE for none.
        turns: the numbers, among all turns, of those for which it stands, in order.
        steps: as of a program; owners are numbers in `owners`.
        owners: the other sections whose buffers it frees.
        allocations: how many of the steps allocate.
    """

    sweep: int
    layer: int
    part: int = 0
    turn: int = OUTSIDE
    turns: Sequence[int] = (OUTSIDE,)
    steps: list[Step] = field(default_factory=list)
    owners: dict[LayerSection, int] = field(default_factory=dict)
    allocations: int = 0

    @property
    def sizes(self) -> list[int]:
        """Bytes of what it allocates."""
        return [step[3] for step in self.steps if step[0] == ALLOCATE]

    def followed(self, turn: int, more: int) -> LayerSection:
        """The section that a TURN event begins after this one."""
        same = OUTSIDE not in (self.turn, turn)
        turns: Sequence[int] = (turn + more * (turn > _TEMPLATE),)
        if turn == _TEMPLATE:
            turns = range(turn, turn + more + 1)[:: 1 if self.turn < turn else -1]
        return LayerSection(self.sweep, self.layer, self.part + (not same), turn, turns)


def cut(events: Iterable[Event]) -> list[LayerSection]:
    """The sections of a recording, in order. Raises ValueError if a buffer is freed that is not
    alive."""
    sections: list[LayerSection] = []
    sweep, last, going = -1, OUTSIDE, 0

    def begin(layer: int) -> LayerSection:
        """Begins a section. A sweep ends with an event outside of layers, or where the direction
        changes."""
        nonlocal sweep, last, going
        if layer != OUTSIDE:
            step = layer - last
            along = last != OUTSIDE and step != 0 and step * going >= 0
            sweep += not along
            going = step if along else 0
        last = layer
        sections.append(LayerSection(OUTSIDE if layer == OUTSIDE else sweep, layer))
        return sections[-1]

    current = begin(OUTSIDE)
    keep = current.steps.append
    # Where a buffer was allocated: the section, the ordinal of the allocation in it, and its bytes.
    places: dict[Any, tuple[LayerSection, int, int]] = {}
    inside = False
    for event in events:
        kind = event[0]
        if kind in _MARKS or not inside:
            if kind == LAYER:
                inside = event[1] != OUTSIDE
                current = begin(event[1])
            elif kind == TURN:
                current = current.followed(*event[1:])
                sections.append(current)
            else:
                inside = False
                place = places.get(event[1]) if kind == FREE else None
                owner = place[0].layer if place else OUTSIDE
                if owner != current.layer:
                    current = begin(owner)
            keep = current.steps.append
        if kind == ALLOCATE:
            places[event[1]] = (current, current.allocations, event[2])
            keep((ALLOCATE, OWN, current.allocations, event[2], event[3]))
            current.allocations += 1
        elif kind in FREES:
            if event[1] not in places:
                raise ValueError(f"buffer {event[1]} is freed but not alive")
            of, ordinal, nbytes = places.pop(event[1])
            owner = OWN
            if of is not current:
                owner = current.owners.setdefault(of, len(current.owners))
            keep((kind, owner, ordinal, nbytes, None))
        elif kind != TURN:
            keep((kind, 0, 0, 0, event))
    return sections


def repeated_events(events: Sequence[Event]) -> RepeatedEvents:
    """Events as calls; if they are not calls yet, each section becomes one call.

    Raises ValueError if a buffer is freed that is not alive.
    """
    if isinstance(events, RepeatedEvents):
        return events
    caller = Caller(())
    for section in cut(events):
        caller.call(section, 0, OUTSIDE, last=True)
    return RepeatedEvents(caller.calls, events)


def _rows_of(folds: Iterable[Fold]) -> dict[int, Fold]:
    """The fold of each layer that is built."""
    return {layer: row for row in folds for layer in range(row.start, row.start + row.built)}


def _is_near(rows: dict[int, Fold], section: LayerSection, place: LayerSection) -> bool:
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


def _turn_of(section: LayerSection, place: LayerSection) -> tuple[int, bool]:
    """The turn of the buffers of `place` that `section` frees: its distance and True if one of the
    two stands for other turns, else its number and False."""
    if len(section.turns) == len(place.turns) == 1:
        return place.turns[0], False
    if OUTSIDE in (section.turn, place.turn) or abs(place.turn - section.turn) > 1:
        raise NotPeriodic(f"turns of layer {section.layer} free differently")
    return place.turn - section.turn, True


#: Which section a call is of: its sweep, its number among all layers, its part, and its number
#: among all turns; outside of layers its identity is the second.
_Key = tuple[int, int, int, int]


#: The programs of a section: that of the last layer it stands for, and that of the others, which do
#: not free what all layers share; and the owners of the buffers that are freed, each with whether
#: its layer and its turn are distances.
_Compiled = tuple[Program, Program, list[tuple[_Key, bool, bool]]]


class Caller:
    """Turns sections into calls.

    Attributes:
        calls: so far.
    """

    def __init__(self, folds: Sequence[Fold]) -> None:
        self.calls: list[Call] = []
        self._found: dict[_Key, int] = {}
        self._compiled: dict[int, _Compiled] = {}
        self._numbers: dict[int, int] = {}
        self._rows = _rows_of(folds)
        added = 0
        for row in folds:
            for layer in range(row.built):
                after = row.added if layer >= row.template + row.period else 0
                self._numbers[row.start + layer] = row.start + layer + added + after
            added += row.added

    def call(self, section: LayerSection, copy: int, turn: int, *, last: bool) -> None:
        """Calls a section for the layer that is `copy` periods after its own, and for a turn.
        `last`: it is not called for other layers again."""
        layer = section.layer
        number = self._numbers.get(layer, layer)
        if copy:
            number += copy * self._rows[layer].period
        found = self._found
        found[_key(section, number, turn)] = len(self.calls)
        if id(section) not in self._compiled:
            self._compiled[id(section)] = self._compile(section)
        program, others, owners = self._compiled[id(section)]
        calls = [
            found[sweep, number + other if near else other, part, turn + at if alike else at]
            for (sweep, other, part, at), near, alike in owners
        ]
        self.calls.append(Call(program if last else others, number, tuple(calls)))

    def _compile(self, section: LayerSection) -> _Compiled:
        owners = []
        shared = set()
        for place, owner in section.owners.items():
            near = _is_near(self._rows, section, place)
            number = self._numbers.get(place.layer, place.layer)
            turn, alike = _turn_of(section, place)
            key = _key(place, place.layer - section.layer if near else number, turn)
            owners.append((key, near, alike))
            if not near:
                shared.add(owner)
        program = others = Program(section.steps, section.allocations)
        row = self._rows.get(section.layer)
        if shared and row and 0 <= section.layer - row.start - row.template < row.period:
            kept = [s for s in section.steps if s[0] not in FREES or s[1] not in shared]
            others = Program(kept, section.allocations)
        return program, others, owners


def _key(section: LayerSection, number: int, turn: int) -> _Key:
    if section.layer == OUTSIDE:
        return OUTSIDE, id(section), 0, OUTSIDE
    return section.sweep, number, section.part, turn


class NotPeriodic(Exception):
    """Layers or turns that should be alike are not: more must be built."""


def unfold(events: Sequence[Event], folds: Sequence[Fold]) -> RepeatedEvents:
    """The events of all layers, from those of the layers that were built.

    Raises NotPeriodic if layers that should be alike allocate differently.
    """
    if not any(row.copies for row in folds) and all(event[0] != TURN for event in events):
        return repeated_events(events)
    sections = cut(events)
    caller = Caller(folds)
    first, final = [{s.sweep: s.layer for s in row} for row in (reversed(sections), sections)]
    for group, copies in _groups(sections, folds):
        rising = first[group[0].sweep] <= final[group[0].sweep]
        order = range(copies + 1) if rising else range(copies, -1, -1)
        for copy in order:
            for section in group:
                for turn in section.turns:
                    caller.call(section, copy, turn, last=copy == order[-1])
    return RepeatedEvents(caller.calls)


def peak_levels(events: Sequence[Event], folds: Sequence[Fold]) -> list[tuple[str, int]]:
    """(phase, most live bytes in it) of each phase of all layers, in order, each buffer rounded: as
    in a timeline of what `unfold` returns, without calls. Raises NotPeriodic as it does."""
    rows = _rows_of(folds)
    tops: list[tuple[str, int]] = []
    phase, live, peak = "", 0, 0
    for group, copies in _groups(cut(events), folds):
        # Only the last copy frees what all layers share, so far `shared` bytes: `last` is its most,
        # `top` that of the others, if both began at the same level.
        before, shared, top, last = live, 0, live, live
        for section in group:
            others = [n for p, n in section.owners.items() if not _is_near(rows, section, p)]
            start, kept, outer, more = live, shared, (top, last), len(section.turns) - 1
            if more:
                top, last = live + shared, live
            for kind, owner, _, nbytes, event in section.steps:
                if kind == ALLOCATE:
                    live += -(-nbytes // 512) * 512
                    if live > last:
                        last = live
                    if live + shared > top:
                        top = live + shared
                elif kind == FREE:
                    size = -(-nbytes // 512) * 512
                    live -= size
                    if copies and owner in others:
                        shared += size
                elif kind == PHASE:
                    tops.append((phase, max(peak, top)))
                    phase, peak, top, last = event[1], live, live, live
            if more:
                rise, kept = more * (live - start), more * (shared - kept)
                top, last = max(outer[0], top, top + rise + kept), max(outer[1], last, last + rise)
                live, shared = live + rise, shared + kept
        gained = live + shared - before
        peak = max(peak, top, top + max(copies - 1, 0) * gained, last + copies * gained)
        live += copies * gained
    return [*tops[1:], (phase, peak)]


def _groups(
    sections: Sequence[LayerSection], folds: Sequence[Fold]
) -> Iterator[tuple[list[LayerSection], int]]:
    """Groups of sections that are repeated together, with the number of copies; other sections
    alone, with 0. Raises NotPeriodic as `unfold` does."""
    copies_of = {
        layer: row
        for row in folds
        if row.copies
        for layer in range(row.start + row.template, row.start + row.template + row.period)
    }
    _check(sections, folds)
    for (row, _), group in groupby(sections, lambda each: (copies_of.get(each.layer), each.sweep)):
        if row is None:
            yield from (([section], 0) for section in group)
        else:
            yield [*group], row.copies


def _check(sections: Sequence[LayerSection], folds: Sequence[Fold]) -> None:
    """Raises NotPeriodic if the layer before the repeated ones does not allocate like the last of
    them, or the layer after them not like the first; so with turns, and what they free."""
    pairs = {}
    for row in folds:
        if row.copies:
            first = row.start + row.template
            pairs[first - 1] = first + row.period - 1
            pairs[first + row.period] = first
    wanted = {*pairs, *pairs.values()}
    found: dict[tuple[int, int], list[int]] = {}
    for section in sections:
        if section.layer in wanted:
            found.setdefault((section.sweep, section.layer), []).extend(section.sizes)
    for (sweep, layer), sizes in found.items():
        like = pairs.get(layer, layer)
        if found.get((sweep, like), sizes) != sizes:
            raise NotPeriodic(f"layers {layer} and {like} allocate differently")
    loops = any(len(section.turns) > 1 for section in sections)
    for number, section in enumerate(sections if loops else ()):
        for place in section.owners:
            _turn_of(section, place)
        alike = sections[number - 1 : number + 2] if len(section.turns) > 1 else ()
        if any(other.sizes != section.sizes for other in alike):
            raise NotPeriodic(f"turns of layer {section.layer} allocate differently")
