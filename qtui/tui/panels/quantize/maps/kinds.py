"""The kinds of maps, and how each is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qtui.screen.widgets.heatmap.grid import HeatGrid, HeatScale
from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme

POOLINGS = ("max", "mean", "rms", "nearest")
# A root mean square has no sign.
SIGNED_POOLINGS = ("max", "mean", "nearest")


@dataclass(frozen=True)
class MapChoice:
    """A kind of map. `name` is its name in requests, `schemes` the number of schemes it needs;
    the numbers of two schemes can be compared where `unit` gives the same for both: the scale of
    NF4 is the largest magnitude of its group, that of INT4 a seventh of it, and a code of INT4
    names another level with a zero point."""

    name: str
    title: str
    schemes: int = 1
    signed: bool = False
    log: bool = True
    poolings: tuple[str, ...] = POOLINGS
    unit: Callable[[Scheme], object] = lambda scheme: None

    def scale(self, cells: Sequence[float]) -> HeatScale:
        """The colour scale of the cells. For scales and codes it is signed if some are negative."""
        signed = self.signed or any(value < 0 for value in cells)
        return HeatScale.of(cells, signed=signed, log=self.log)


KINDS = (
    MapChoice("error", "|error|"),
    MapChoice("signed", "error", signed=True, poolings=SIGNED_POOLINGS),
    MapChoice("value", "value", schemes=0, signed=True),
    MapChoice("scale", "scale", unit=lambda scheme: scheme.format),
    MapChoice(
        "code", "code", log=False, poolings=("nearest",),
        unit=lambda scheme: (scheme.format, scheme.symmetric),
    ),
    MapChoice("difference", "|error| A-B", schemes=2, signed=True, poolings=SIGNED_POOLINGS),
)  # fmt: skip
DIFFERENCE = KINDS[-1]


def map_titles(
    kind: MapChoice, pooling: str, grid: HeatGrid, times: str, front: str
) -> tuple[str, ...]:
    """The titles of a map, the longest first: `front` (what it shows), how it is pooled, its scale,
    and its window."""
    high, wide = grid.pool
    several = high * wide > 1
    pooled = f"{pooling} over {high}{times}{wide}" if several else ""
    brief = f"{pooling} {high}{times}{wide}" if several else ""
    log = "log" if kind.log else ""
    if grid.window is None:
        return _texts(front, (pooled, log), (pooled,), (brief,))
    top, bottom, left, right = grid.window
    rows, columns = f"{top:,}-{bottom - 1:,}", f"{left:,}-{right - 1:,}"
    long = f"rows {rows}, columns {columns}"
    short = f"{rows}{times}{columns}"
    return _texts(front, (pooled, log, long), (pooled, log, short), (brief, short), (short,))


def _texts(front: str, *parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(", ".join((front, *filter(None, part))) for part in parts)
