"""Turns a curve into the cells of a picture, as plain numbers that the widget draws."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import Final

from qtui.screen.curve.legend import PARTS
from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.timeline import Span, StackedCurve

#: The least columns of a phase, if there is room: enough for its name or part of it.
LEAST_COLUMNS: Final = 6
#: If the peak is above this share of the capacity, the picture reaches up to the capacity.
_NEAR: Final = 0.55


@dataclass(frozen=True)
class ChartBand:
    """A phase and its columns: start <= column < stop."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Chart:
    """What is drawn.

    Attributes:
        columns: bytes of each part, for each column of cells.
        ghost: total bytes before the last change, for each column; empty if there is none.
        bands: the phases.
        top: bytes at the upper edge.
        peak: the column with the most bytes.
        capacity: of the GPU, if it is within the picture.
    """

    columns: tuple[tuple[int, ...], ...]
    ghost: tuple[int, ...]
    bands: tuple[ChartBand, ...]
    top: int
    peak: int
    capacity: int | None = None


def make_chart(
    curve: StackedCurve,
    width: int,
    *,
    before: StackedCurve | None = None,
    capacity: int | None = None,
) -> Chart:
    """A curve in `width` columns; each shows the point with the most bytes in its range of events.
    Phases get columns in proportion to their events, but at least enough to be seen. `before` is
    laid behind it, phase by phase."""
    bands = _bands(curve.bands, width)
    totals = curve.totals
    columns = [(0,) * len(PARTS)] * width
    for band, place in zip(curve.bands, bands, strict=True):
        for offset, at in enumerate(_fullest(curve.positions, totals, band, place)):
            columns[place.start + offset] = tuple(row[at] for row in curve.rows)
    ghost = () if before is None else _ghost(before, bands, width)
    heights = [sum(column) for column in columns]
    most = max(heights, default=0)
    top = max(most, *ghost) if ghost else most
    seen = None
    if capacity is not None and top >= _NEAR * capacity:
        top, seen = max(top, round(1.04 * capacity)), capacity
    return Chart(
        tuple(columns), ghost, bands, max(top, 1), heights.index(most) if heights else 0, seen
    )


def _bands(bands: Sequence[Span], width: int) -> tuple[ChartBand, ...]:
    """Columns for the phases: `least` each, the rest in proportion to events; together they fill
    the width."""
    if not bands or width < 1:
        return ()
    least = min(LEAST_COLUMNS, width // (2 * len(bands)))
    spare = width - least * len(bands)
    total = sum(band.stop - band.start for band in bands) or 1
    ends = [0]
    for done in accumulate(band.stop - band.start for band in bands):
        ends.append(len(ends) * least + spare * done // total)
    return tuple(
        ChartBand(band.name, start, stop)
        for band, (start, stop) in zip(bands, pairwise(ends), strict=True)
    )


def _fullest(
    positions: Sequence[int], totals: Sequence[int], band: Span, place: ChartBand
) -> list[int]:
    """For each column of a phase, the index of the point with the most bytes in it; if it contains
    none, the point before it."""
    width = place.stop - place.start
    if not positions:
        return []
    found = []
    for column in range(width):
        low = band.start + (band.stop - band.start) * column // width
        high = band.start + (band.stop - band.start) * (column + 1) // width
        first, stop = bisect_left(positions, low), bisect_left(positions, high)
        if first < stop:
            found.append(max(range(first, stop), key=totals.__getitem__))
        else:
            found.append(max(bisect_right(positions, low) - 1, 0))
    return found


def _ghost(before: StackedCurve, bands: Sequence[ChartBand], width: int) -> tuple[int, ...]:
    """The height of another curve in the columns of this one; phases with the same name and
    occurrence are aligned."""
    totals = before.totals
    turns: dict[str, list[Span]] = {}
    for band in before.bands:
        turns.setdefault(band.name, []).append(band)
    heights = [0] * width
    seen: dict[str, int] = {}
    for place in bands:
        turn = seen.get(place.name, 0)
        seen[place.name] = turn + 1
        same = turns.get(place.name, ())
        if turn < len(same):
            for offset, at in enumerate(_fullest(before.positions, totals, same[turn], place)):
                heights[place.start + offset] = totals[at]
    return tuple(heights)


@dataclass(frozen=True)
class Cell:
    """A cell: one part fills it from below up to `eighths`, another fills the rest; -1 is none."""

    lower: int
    upper: int
    eighths: int


EMPTY: Final = Cell(-1, -1, 0)
#: Cells filled by one part.
WHOLE: Final = tuple(Cell(place, place, 8) for place in range(len(PARTS)))


def cells_of(column: Sequence[int], height: int, top: int) -> list[Cell]:
    """The cells of a column from bottom to top."""
    ends = [end * height / top for end in accumulate(column)]
    cells = [EMPTY] * height
    below = 0.0
    edges = set()
    for place, end in enumerate(ends):
        if end > below:
            for row in range(ceil(below), min(int(end), height)):
                cells[row] = WHOLE[place]
            edges.add(int(below))
            edges.add(int(end))
            below = end
    for row in edges:
        if row < height:
            cells[row] = _cell(ends, row)
    return cells


def _cell(ends: Sequence[float], row: int) -> Cell:
    """The two largest parts in a cell, the lower one first; or one part and -1."""
    parts: list[tuple[float, int]] = []
    below = float(row)
    for place, end in enumerate(ends):
        upto = min(end, row + 1.0)
        if upto - below > 0:
            parts.append((upto - below, place))
            below = upto
    filled = below - row
    if filled <= 0:
        return EMPTY
    if filled < 1:
        # The outline matters most: the largest part, with the total height of all.
        eighths = max(1, round(8 * filled))
        most = max(parts)[1]
        return WHOLE[most] if eighths == 8 else Cell(most, -1, eighths)
    if len(parts) == 1:
        return WHOLE[parts[0][1]]
    (low, lower), (high, upper) = sorted(sorted(parts, reverse=True)[:2], key=lambda part: part[1])
    eighths = round(8 * low / (low + high))
    if eighths in (0, 8):
        return WHOLE[lower if eighths else upper]
    return Cell(lower, upper, eighths)
