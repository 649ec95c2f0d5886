"""To which layer an allocation outside of any layer's work belongs: loading, preparation and the
optimizer step work on tensors of all layers in turn."""

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

#: Phases in which no module works.
STILL = (Phase.LOAD, Phase.PREPARE, Phase.OPTIMIZER)


def mark_owners(
    events: Sequence[Event], known: Mapping[int, int], sources: Mapping[int, int]
) -> tuple[Event, ...]:
    """The events, in phases where no module works with a mark wherever what follows is of another
    layer.

    Args:
        events: with marks of the layers' own work.
        known: layer of each storage that has a name in the model, OUTSIDE for those of none.
        sources: of storages, the one that each was made from (a cast, a state of a weight, the
            root of a state), whose layer is then its own, and the other way round.
    """
    owners = _spread(known, sources)
    marked: list[Event] = []
    working = OUTSIDE  # the layer whose work the model announced
    marking = OUTSIDE  # the layer last marked here
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
