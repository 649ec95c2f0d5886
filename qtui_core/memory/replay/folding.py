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
from typing import Any, Final, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.programs import OWN, Call, Program, RepeatedEvents, Step
from qtui_core.memory.replay.record import ALLOCATE, FREE, FREES, LAYER, OUTSIDE, PHASE, TURN, Event
from qtui_core.memory.shape.model_shape import Layer, ModelShape

#: The longest pattern that is looked for; Gemma 3 repeats six layers.
_LONGEST_PERIOD: Final = 12
#: The turn of a loop that stands for others. Those beside it must allocate alike.
_TEMPLATE: Final = 2


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


@dataclass(frozen=True)
class Folded:
    """A shape with only some layers left, and how each row of layers was folded."""

    shape: ModelShape
    folds: tuple[Fold, ...]


def fold(shape: ModelShape, margin: int = 1) -> Folded:
    """The shape with as few layers as show the pattern.

    `margin` is how many layers are built before and after those that stand for others, besides the
    first. They must allocate like those that are left out.
    """
    layers = shape.layers
    template, period, copies = pattern_of(kinds_of(layers), margin)
    row = Fold(0, len(layers) - copies * period, template, period, copies)
    kept = layers[: template + period] + layers[template + period * (1 + copies) :]
    return Folded(replace(shape, layers=kept) if copies else shape, (row,))


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
    """The events of one layer in one sweep, or of no layer. A loop divides them into those before
    it, of each of its turns, and after it.

    Attributes:
        sweep: number of the sweep; OUTSIDE for no layer.
        layer: its layer; OUTSIDE for none.
        direction: of the LAYER event that began it; empty if there was none.
        part: how many loops have begun and ended before it in the sweep and layer.
        turn: of those that are built; OUTSIDE for none.
        turns: the numbers, among all turns, of those for which it stands, in order.
        events: without the LAYER or TURN event.
        allocations: how many of them allocate.
    """

    sweep: int
    layer: int
    direction: str
    part: int = 0
    turn: int = OUTSIDE
    turns: Sequence[int] = (OUTSIDE,)
    events: list[Event] = field(default_factory=list)
    allocations: int = 0


#: Where a buffer was allocated: the section, the ordinal of the allocation in it, and its bytes.
Place = tuple[LayerSection, int, int]


def cut(events: Iterable[Event]) -> tuple[list[LayerSection], dict[Any, Place]]:
    """The sections of a recording in order, and the place of each buffer by its id."""
    sections: list[LayerSection] = []
    sweep, last, going = -1, OUTSIDE, 0

    def begin(layer: int, direction: str) -> LayerSection:
        """Begins a section. A sweep ends with an event outside of layers, or where the direction
        changes."""
        nonlocal sweep, last, going
        if layer != OUTSIDE:
            step = layer - last
            along = last != OUTSIDE and step != 0 and step * going >= 0
            sweep += not along
            going = step if along else 0
        last = layer
        sections.append(LayerSection(OUTSIDE if layer == OUTSIDE else sweep, layer, direction))
        return sections[-1]

    current = begin(OUTSIDE, "")
    keep = current.events.append
    places: dict[Any, Place] = {}
    inside = False
    for event in events:
        kind = event[0]
        if kind == LAYER:
            inside = event[1] != OUTSIDE
            current = begin(event[1], event[2])
            keep = current.events.append
            continue
        if kind == TURN:
            current = _turned(current, event[1], event[2])
            sections.append(current)
            keep = current.events.append
            continue
        if not inside or kind == PHASE:
            inside = False
            owner = places[event[1]][0].layer if kind == FREE else OUTSIDE
            if owner != current.layer:
                current = begin(owner, "")
                keep = current.events.append
        if kind == ALLOCATE:
            places[event[1]] = (current, current.allocations, event[2])
            current.allocations += 1
        keep(event)
    return sections, places


def _turned(before: LayerSection, turn: int, more: int) -> LayerSection:
    """The section that begins with a TURN event after another."""
    same = OUTSIDE not in (before.turn, turn)
    turns: Sequence[int] = (turn + more * (turn > _TEMPLATE),)
    if turn == _TEMPLATE:
        turns = range(turn, turn + more + 1)
        if before.turn > turn:
            turns = turns[::-1]
    return LayerSection(before.sweep, before.layer, "", before.part + (not same), turn, turns)


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
            caller.call(section, 0, OUTSIDE, last=True)
    except KeyError as error:
        raise ValueError(f"buffer {error} is freed before it is allocated") from None
    found = RepeatedEvents(caller.calls, events)
    freed: set[tuple[int, int]] = set()
    for number, call in enumerate(found.calls):
        owners = (*call.owners, number)  # its own are the last, at index OWN
        for step, (kind, owner, ordinal, *_) in enumerate(call.program.steps):
            if kind not in FREES:
                continue
            if (owners[owner], ordinal) in freed:
                event = found.starts[number] + step
                raise ValueError(f"event {event} frees a buffer that is not alive")
            freed.add((owners[owner], ordinal))
    return found


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
    """The turn of a buffer that a section frees: its distance and True if one of the two stands for
    other turns, else its number and False."""
    if len(section.turns) == len(place.turns) == 1:
        return place.turns[0], False
    if OUTSIDE in (section.turn, place.turn) or abs(place.turn - section.turn) > 1:
        raise NotPeriodic(f"turns of layer {section.layer} free differently")
    return place.turn - section.turn, True


#: Which section a call is of: its sweep, its number among all layers, its part, and its number
#: among all turns; outside of layers its identity is the second.
_Key = tuple[int, int, int, int]
#: Whose buffer a section frees, and whether layer and turn are distances from its own.
_Owner = tuple[_Key, bool, bool]


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
        self._found[_key(section, number, turn)] = len(self.calls)
        compiled = self._compiled.get(id(section))
        if compiled is None:
            compiled = self._compiled[id(section)] = self._compile(section)
        found = self._found
        owners = tuple(
            [
                found[sweep, number + other if near else other, part, turn + at if alike else at]
                for (sweep, other, part, at), near, alike in compiled.owners
            ]
        )
        program = compiled.last if last else compiled.others
        self.calls.append(Call(program, number, owners))

    def _compile(self, section: LayerSection) -> _Compiled:
        owners: dict[_Owner, int] = {}
        slots = {id(section): (OWN, True)}
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
                if id(place) not in slots:
                    near = _is_near(self._rows, section, place)
                    number = self._numbers.get(place.layer, place.layer)
                    if near:
                        number = place.layer - section.layer
                    turn, alike = _turn_of(section, place)
                    owner = (_key(place, number, turn), near, alike)
                    slots[id(place)] = owners.setdefault(owner, len(owners)), near
                slot, near = slots[id(place)]
                if not near:
                    shared.add(len(steps))
                steps.append((kind, slot, other, nbytes, None))
            else:
                steps.append((kind, 0, 0, 0, event))
        program = others = Program(steps, ordinal)
        row = self._rows.get(section.layer)
        if shared and row and 0 <= section.layer - row.start - row.template < row.period:
            others = Program([s for n, s in enumerate(steps) if n not in shared], ordinal)
        return _Compiled(program, others, tuple(owners))


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
    sections, places = cut(events)
    _check(sections, folds)
    caller = Caller(folds, places)
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
    in a timeline of what `unfold` returns, in a third of the time. Raises NotPeriodic as it does.
    """
    sections, places = cut(events)
    _check(sections, folds)
    rows = _rows_of(folds)
    sizes: dict[Any, int] = {}
    tops: list[tuple[str, int]] = []
    phase, live, peak = "", 0, 0
    for group, copies in _groups(sections, folds):
        # Only the last copy frees what all layers share, so far `shared` bytes: `last` is its most,
        # `top` that of the others, if both began at the same level.
        before, shared, top, last = live, 0, live, live
        for section in group:
            start, far, outer, more = live, shared, (last, top), len(section.turns) - 1
            if more:
                last, top = live, live + shared
            for event in section.events:
                kind = event[0]
                if kind == ALLOCATE:
                    size = sizes[event[1]] = -(-int(event[2]) // 512) * 512
                    live += size
                    if live > last:
                        last = live
                    if live + shared > top:
                        top = live + shared
                elif kind == FREE:
                    size = sizes[event[1]]
                    live -= size
                    place = places[event[1]][0]
                    if place is not section:
                        _turn_of(section, place)
                        if copies and not _is_near(rows, section, place):
                            shared += size
                elif kind == PHASE:
                    tops.append((phase, max(peak, top)))
                    phase, peak, top, last = event[1], live, live, live
            if more:
                rise, kept = live - start, shared - far
                last = max(outer[0], last + max(0, more * rise))
                top = max(outer[1], top + max(0, more * (rise + kept)))
                live, shared = live + more * rise, shared + more * kept
        gained = live + shared - before
        peak = max(peak, top, top + max(copies - 1, 0) * gained, last + copies * gained)
        live += copies * gained
    return [*tops[1:], (phase, peak)]


def _groups(
    sections: Sequence[LayerSection], folds: Sequence[Fold]
) -> Iterator[tuple[list[LayerSection], int]]:
    """Groups of sections that are repeated together, with the number of copies; other sections
    alone, with 0."""
    copies_of = {
        layer: row
        for row in folds
        if row.copies
        for layer in range(row.start + row.template, row.start + row.template + row.period)
    }
    group: list[LayerSection] = []
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


def _check(sections: Sequence[LayerSection], folds: Sequence[Fold]) -> None:
    """Raises NotPeriodic if the layer before the repeated ones does not allocate like the last of
    them, or the layer after them not like the first; or turns beside the repeated one not like it.
    """
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
            found.setdefault((section.sweep, section.layer), []).extend(_sizes(section))
    for (sweep, layer), sizes in found.items():
        like = pairs.get(layer, layer)
        if found.get((sweep, like), sizes) != sizes:
            raise NotPeriodic(f"layers {layer} and {like} allocate differently")
    for before, section, after in zip(sections, sections[1:], sections[2:], strict=False):
        alike = (_sizes(before), _sizes(after)) if len(section.turns) > 1 else ()
        if any(sizes != _sizes(section) for sizes in alike):
            raise NotPeriodic(f"turns of layer {section.layer} allocate differently")


def _sizes(section: LayerSection) -> list[int]:
    return [event[2] for event in section.events if event[0] == ALLOCATE]
