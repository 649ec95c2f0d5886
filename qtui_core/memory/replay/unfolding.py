"""Turns a recording of few layers into one of all layers, by calling the repeated sections for
each.

In each sweep over the layers (sections.py), the sections of the layers that stand for others are
called again. A buffer is identified by its sweep, its layer and its ordinal in that section; a
section that frees a buffer of the layer before does so in every call. What all layers share, made
outside of them or in a distant layer, is freed by the last one that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from qtui_core.memory.replay.folding import Fold
from qtui_core.memory.replay.record import ALLOCATE, FREE, OUTSIDE, PHASE, Event
from qtui_core.memory.replay.repeated_events import (
    Caller,
    RepeatedEvents,
    is_near,
    repeated_events,
    rows_of,
)
from qtui_core.memory.replay.sections import LayerSection, cut


class NotPeriodic(Exception):
    """Layers that should be alike are not: more layers must be built."""


def unfold(events: Sequence[Event], folds: Sequence[Fold]) -> RepeatedEvents:
    """The events of all layers, from those of the layers that were built.

    Raises NotPeriodic if layers that should be alike allocate differently.
    """
    if not any(row.copies for row in folds):
        return repeated_events(events)
    sections, places = cut(events)
    _check(sections, folds)
    caller = Caller(folds, places)
    for group, copies in _groups(sections, folds):
        rising = len(group) < 2 or group[0].layer < group[-1].layer
        if copies and len(group) == 1:
            rising = _rises(sections, group[0])
        order = range(copies + 1) if rising else range(copies, -1, -1)
        for copy in order:
            for section in group:
                caller.call(section, copy, last=copy == order[-1])
    return RepeatedEvents(caller.calls)


def peak_levels(events: Sequence[Event], folds: Sequence[Fold]) -> Iterator[tuple[str, int]]:
    """(phase, most live bytes in it) for all layers, each buffer rounded, for each phase in order.
    No event is copied. Raises NotPeriodic as `unfold` does."""
    sizes: dict[int, int] = {}
    live = peak = 0
    phase = ""
    for group, copies in repeated(events, folds):
        before = top = live
        for section in group:
            for event in section.events:
                kind = event[0]
                if kind == ALLOCATE:
                    size = sizes[event[1]] = -(-int(event[2]) // 512) * 512
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


def repeated(
    events: Sequence[Event], folds: Sequence[Fold]
) -> Iterator[tuple[list[LayerSection], int]]:
    """The sections in order, each group that is repeated together with its number of copies. What a
    group frees of the buffers that all layers share follows it, once. Raises NotPeriodic as
    `unfold` does."""
    sections, places = cut(events)
    _check(sections, folds)
    rows = rows_of(folds)
    for group, copies in _groups(sections, folds):
        if not copies:
            yield group, 0
            continue
        after: list[Event] = []
        own: list[LayerSection] = []
        for section in group:
            far = [
                event
                for event in section.events
                # Most of what a section frees is its own.
                if event[0] == FREE
                and (place := places[event[1]][0]) is not section
                and not is_near(rows, section, place)
            ]
            if far:
                once = set(far)
                near = [event for event in section.events if event not in once]
                section = LayerSection(section.sweep, section.layer, "", near, section.allocations)
            own.append(section)
            after += far
        yield own, copies
        if after:
            yield [LayerSection(OUTSIDE, OUTSIDE, "", after)], 0


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


def _rises(sections: Sequence[LayerSection], of: LayerSection) -> bool:
    """Whether the sweep of a section goes up the layers."""
    sweep = [section.layer for section in sections if section.sweep == of.sweep]
    return sweep[0] <= sweep[-1]


def _check(sections: Iterable[LayerSection], folds: Sequence[Fold]) -> None:
    """Raises NotPeriodic if the layer before the repeated ones does not allocate like the last of
    them, or the layer after them not like the first."""
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


def _sizes(section: LayerSection) -> list[int]:
    return [event[2] for event in section.events if event[0] == ALLOCATE]
