"""Lines as dots in cells: two columns and four rows of dots in a cell (Braille), or one character
per cell in ASCII. Plain numbers; widgets draw them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal

from qtui.report.pictures.cells import ACROSS, BITS, BLANK, DOWN
from qtui_core.dataclass import dataclass

#: How a line is drawn, to distinguish lines without colours.
Stroke = Literal["thick", "thin", "dotted", "level"]
ASCII_SIGNS: Final[dict[Stroke, str]] = {"thick": "*", "thin": "=", "dotted": "-", "level": "_"}


@dataclass(frozen=True)
class Track:
    """A line with `ACROSS` points for each column of cells; None for unknown values.

    Attributes:
        name: what is measured.
        stroke: how it is drawn; a "level" is a value that holds for a while, without connecting
            lines.
        values: its height at each point, in the unit of the picture.
    """

    name: str
    stroke: Stroke
    values: tuple[float | None, ...]


def joined(values: Sequence[float | None]) -> list[float | None]:
    """Straight lines between the known values; None before the first and after the last."""
    found = list(values)
    known = [at for at, value in enumerate(values) if value is not None]
    for left, right in pairwise(known):
        start, stop = values[left] or 0.0, values[right] or 0.0
        for at in range(left + 1, right):
            found[at] = start + (stop - start) * (at - left) / (right - left)
    return found


def cells_of_track(
    track: Track, height: int, top: float, *, floor: float = 0.0, ascii: bool
) -> dict[tuple[int, int], str]:
    """(row from the bottom, column) -> the character there, in `height` rows of cells for values
    from `floor` to `top`. Values outside are drawn at the edge."""
    most = height * DOWN - 1
    masks: dict[tuple[int, int], int] = {}
    before: int | None = None
    flat = track.stroke == "level"
    for at, value in enumerate(track.values if flat else joined(track.values)):
        if value is None or flat:
            before = None
        if value is None:
            continue
        here = max(0, min(most, round((value - floor) / top * most)))
        low, high = (here, here) if before is None else (min(before, here), max(before, here))
        # A rise is drawn at its end and touches its beginning.
        low += (before is not None and before < here) and high > low
        high -= (before is not None and before > here) and high > low
        before = here
        if track.stroke == "dotted" and at % 4 >= 2 and high == low:
            continue
        if track.stroke == "thick" and high == low:
            low = max(0, low - 1)
        for dot in range(low, high + 1):
            cell = (dot // DOWN, at // ACROSS)
            bit = BITS[at % ACROSS][DOWN - 1 - dot % DOWN]
            masks[cell] = masks.get(cell, 0) | bit
    if ascii:
        return dict.fromkeys(masks, ASCII_SIGNS[track.stroke])
    return {cell: chr(BLANK + mask) for cell, mask in masks.items()}


def sample_of(stroke: Stroke, *, ascii: bool) -> str:
    """Two cells of a line, for a legend."""
    if ascii:
        return ASCII_SIGNS[stroke] * 2
    return {"thick": "⠶⠶", "thin": "⠒⠒", "dotted": "⠂⠂", "level": "⠒⠒"}[stroke]
