"""The seven groups of components in reports of a peak, and a curve with a layer for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import Component
from qtui_core.memory.replay.timeline import Span


@dataclass(frozen=True)
class Group:
    """Components that are shown together.

    Attributes:
        letter: its mark, as not everyone can tell the colours apart.
        name: in words; `short`: for narrow places.
        components: in it.
    """

    letter: str
    name: str
    short: str
    components: frozenset[Component]


def _group(letter: str, name: str, short: str, *components: Component) -> Group:
    return Group(letter, name, short, frozenset(components))


#: From bottom to top: what stays lies below what comes and goes.
GROUPS: Final = (
    _group("W", "weights", "weights",
           Component.WEIGHTS, Component.QUANTIZATION, Component.BUFFERS),
    _group("R", "adapters", "adapters", Component.ADAPTERS),
    _group("O", "optimizer states", "optimizer", Component.OPTIMIZER),
    _group("G", "gradients", "grads", Component.GRADIENTS),
    _group("A", "activations", "acts",
           Component.ACTIVATIONS, Component.CACHE, Component.INPUTS),
    _group("L", "loss", "loss", Component.LOSS),
    _group("T", "temps and workspaces", "temps", Component.TEMPORARIES, Component.WORKSPACES),
)  # fmt: skip

#: Name of a component -> its index in GROUPS.
PLACES: Final = {
    component.value: place for place, group in enumerate(GROUPS) for component in group.components
}


def place_of(component: str) -> int:
    """The index of a component's group; an unknown component counts as a temporary."""
    return PLACES.get(component, len(GROUPS) - 1)


def grouped(components: Iterable[tuple[str, int]]) -> list[tuple[Group, int]]:
    """The groups that are present with their bytes, from bottom to top."""
    sums: dict[int, int] = {}
    for name, nbytes in components:
        sums[place_of(name)] = sums.get(place_of(name), 0) + nbytes
    return [(GROUPS[place], sums[place]) for place in sorted(sums)]


@dataclass(frozen=True)
class StackedCurve:
    """Bytes of each group (in the order of GROUPS) at `positions`, which are event numbers; `bands`
    are the phases."""

    positions: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    bands: tuple[Span, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*self.rows, strict=True)))


def stacked(
    positions: Iterable[int],
    components: Iterable[str],
    bytes: Iterable[Sequence[int]],
    bands: Iterable[Span],
) -> StackedCurve:
    """The stacked curve of a curve with a row of bytes for each component."""
    places = tuple(positions)
    rows = [[0] * len(places) for _ in GROUPS]
    for component, values in zip(components, bytes, strict=True):
        row = rows[place_of(component)]
        for at, nbytes in enumerate(values):
            row[at] += nbytes
    return StackedCurve(places, tuple(map(tuple, rows)), tuple(bands))
