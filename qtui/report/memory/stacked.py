"""The curve of a step with its components summed up to the groups that are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qtui.report.memory.parts import GROUPS, place_of
from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.timeline import Span


@dataclass(frozen=True)
class StackedCurve:
    """Bytes of each group (in the order of GROUPS) at `positions`, which are event numbers;
    `bands` are the phases."""

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
    """Of a curve with a row of bytes for each component."""
    places = tuple(positions)
    rows = [[0] * len(places) for _ in GROUPS]
    for component, values in zip(components, bytes, strict=True):
        row = rows[place_of(component)]
        for at, nbytes in enumerate(values):
            row[at] += nbytes
    return StackedCurve(places, tuple(map(tuple, rows)), tuple(bands))
