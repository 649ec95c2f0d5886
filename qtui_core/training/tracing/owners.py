"""Finds the layer that an allocation belongs to if it is made outside of any layer's work: loading,
preparation and the optimizer step work on the tensors of all layers in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qtui_core.memory.replay.record import (
    ALLOCATE,
    FORWARD,
    FREE,
    LAYER,
    OUTSIDE,
    PHASE,
    Event,
    Phase,
)

#: Phases in which no module is at work.
STILL = (Phase.LOAD, Phase.PREPARE, Phase.OPTIMIZER)


def mark_owners(
    events: Sequence[Event], known: Mapping[int, int], sources: Mapping[int, int]
) -> tuple[Event, ...]:
    """The events, with marks added in phases where no module is at work: there is a mark wherever
    the next event belongs to another layer.

    Args:
        events: with the marks of the layers' own work.
        known: the layer of each storage that has a name in the model; OUTSIDE if it is in no layer.
        sources: storage -> the storage that it was made from, for example by a cast, or as the
            optimizer state of a weight. If the layer of one of both is known, the other has the
            same.
    """
    owners = _spread(known, sources)
    marked: list[Event] = []
    working = OUTSIDE  # the layer that the model announced
    marking = OUTSIDE  # the layer that was marked last
    still = False
    for event in events:
        kind = event[0]
        if kind == PHASE:
            if marking != OUTSIDE:
                marked.append((LAYER, OUTSIDE, FORWARD))
            working = marking = OUTSIDE
            still = event[1] in STILL
        elif kind == LAYER:
            working = event[1]
        elif kind == ALLOCATE:
            owner = owners.setdefault(event[1], marking if still else working)
        elif kind == FREE:
            owner = owners[event[1]]
        if still and kind in (ALLOCATE, FREE) and owner != marking:
            marked.append((LAYER, owner, FORWARD))
            marking = owner
        marked.append(event)
    return tuple(marked)


def _spread(known: Mapping[int, int], sources: Mapping[int, int]) -> dict[int, int]:
    owners = dict(known)
    for made, source in sources.items():
        if made not in owners and source in owners:
            owners[made] = owners[source]
    for made, source in reversed(list(sources.items())):
        if source not in owners and made in owners:
            owners[source] = owners[made]
    return owners
