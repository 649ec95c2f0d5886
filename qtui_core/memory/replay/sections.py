"""Divides a recording into sections: the work on one layer, or what lies outside of layers.

Consecutive sections of layers, going up or down, are a sweep: the forward pass, the backward pass,
making optimizer states, freeing gradients. What is freed for all layers at once, outside of them,
is a sweep too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import ALLOCATE, FREE, LAYER, OUTSIDE, PHASE, Event


@dataclass(eq=False)
class LayerSection:
    """The events of one layer in one sweep, or of no layer.

    Attributes:
        sweep: number of the sweep; OUTSIDE for no layer.
        layer: its layer; OUTSIDE for none.
        direction: of the LAYER event that began it; empty if there was none.
        events: without that LAYER event.
        allocations: how many of them allocate.
    """

    sweep: int
    layer: int
    direction: str
    events: list[Event] = field(default_factory=list)
    allocations: int = 0


#: Where a buffer was allocated: the section, the ordinal of the allocation in it, and its bytes.
Place = tuple[LayerSection, int, int]


def cut(events: Iterable[Event]) -> tuple[list[LayerSection], dict[Any, Place]]:
    """The sections of a recording in order, and the place of each buffer by its id."""
    knife = _Knife()
    current = knife.begin(OUTSIDE, "")
    keep = current.events.append
    places: dict[Any, Place] = {}
    inside = False
    for event in events:
        kind = event[0]
        if kind == LAYER:
            inside = event[1] != OUTSIDE
            current = knife.begin(event[1], event[2])
            keep = current.events.append
            continue
        if not inside or kind == PHASE:
            inside = False
            owner = places[event[1]][0].layer if kind == FREE else OUTSIDE
            if owner != current.layer:
                current = knife.begin(owner, "")
                keep = current.events.append
        if kind == ALLOCATE:
            places[event[1]] = (current, current.allocations, event[2])
            current.allocations += 1
        keep(event)
    return knife.sections, places


class _Knife:
    """Begins sections and detects the end of a sweep: an event outside of layers, or a change of
    direction."""

    def __init__(self) -> None:
        self.sections: list[LayerSection] = []
        self._sweep = -1
        self._last = OUTSIDE
        self._step = 0

    def begin(self, layer: int, direction: str) -> LayerSection:
        if layer == OUTSIDE:
            sweep = OUTSIDE
        else:
            step = layer - self._last
            along = self._last != OUTSIDE and step != 0 and step * self._step >= 0
            if not along:
                self._sweep += 1
            self._step = step if along else 0
            sweep = self._sweep
        self._last = layer
        section = LayerSection(sweep, layer, direction)
        self.sections.append(section)
        return section
