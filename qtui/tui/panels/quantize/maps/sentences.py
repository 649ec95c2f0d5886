"""What a map means, in a sentence computed from its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui.report.numbers import format_value
from qtui.tui.panels.quantize.maps.picture import MapPicture

# Signs are called even where the odds of so uneven a split of fair coins are small.
SIGMAS = 3.0


def map_sentence(picture: MapPicture, letters: Sequence[str]) -> str:
    """The sentence of a map; empty where the panel's own, about the error, says it best.
    `letters` name the schemes of the difference."""
    cells = [value for value in picture.grid.cells if math.isfinite(value)]
    match picture.request.kind:
        case "signed" if cells:
            return _bias(picture, cells)
        case "value" if cells:
            return _values(picture, cells)
        case "scale" if cells:
            return _scales(picture, cells)
        case "code" if cells:
            return _codes(picture, cells)
        case "difference" if cells:
            return _difference(picture, cells, letters)
    return ""


def _bias(picture: MapPicture, cells: list[float]) -> str:
    up, down = sum(value > 0 for value in cells), sum(value < 0 for value in cells)
    scheme = picture.request.schemes[0]
    if not up + down:
        return f"{scheme} loses nothing here: every element of the map has a level of its own."
    counts = f"{up:,} of {up + down:,} cells lie above zero (the scheme made values larger)"
    if abs(up - down) <= SIGMAS * math.sqrt(up + down):
        return (
            f"{counts}: {scheme} errs to both sides alike, so its errors cancel in sums over many "
            f"elements."
        )
    side = "larger" if up > down else "smaller"
    return (
        f"{counts}: {scheme} makes values {side} more often than not, and such errors add up in "
        f"sums; a scheme with a zero point, or rounding to nearest, would have less of it."
    )


def _values(picture: MapPicture, cells: list[float]) -> str:
    sizes = sorted(map(abs, cells))
    largest, middle = sizes[-1], sizes[len(sizes) // 2]
    at = picture.element_at(*picture.grid.peak)
    place = f"({at[0]:,}, {at[1]:,})"
    if not largest:
        return "All values shown are 0: any scheme keeps them exactly."
    if largest > 4 * middle > 0:
        return (
            f"The largest value, {format_value(largest, 3)} in magnitude at {place}, is "
            f"{largest / middle:.1f} times the middle cell: who shares a scale with it gets a "
            f"coarser grid; smaller groups keep that to fewer elements."
        )
    return (
        f"The largest value, {format_value(largest, 3)} in magnitude at {place}, is no more than "
        f"{max(1.0, largest / middle if middle else 1.0):.1f} times the middle cell: nothing here "
        f"stretches a scale."
    )


def _scales(picture: MapPicture, cells: list[float]) -> str:
    sizes = sorted(size for size in map(abs, cells) if size)
    scheme = picture.request.schemes[0]
    if not sizes:
        return f"All scales of {scheme} shown here are 0: their groups hold nothing but zeros."
    least, most = sizes[0], sizes[-1]
    if most <= 1.001 * least:
        return (
            f"{scheme} has one scale here, {format_value(most, 3)}: what its largest element asks "
            f"for is paid by all; smaller groups would let scales follow the values."
        )
    row, column = picture.element_at(*picture.grid.peak)
    return (
        f"Scales of {scheme} run from {format_value(least, 3)} to {format_value(most, 3)}, a "
        f"factor of {most / least:.3g}: steps are that much coarser around ({row:,}, {column:,}) "
        f"than where they are finest."
    )


def _codes(picture: MapPicture, cells: list[float]) -> str:
    counts: dict[float, int] = {}
    for value in cells:
        counts[value] = counts.get(value, 0) + 1
    code, most = max(counts.items(), key=lambda item: item[1])
    scheme, share = picture.request.schemes[0], most / len(cells)
    seen = f"{len(counts):,} different codes of {scheme} stand in the cells' middles"
    if share > 0.5:
        return (
            f"{seen}, and {share:.0%} of them are {code:g}: most elements share one level, so a "
            f"smaller group or a larger format would tell them apart."
        )
    return f"{seen}; the most frequent, {code:g}, is {share:.0%} of them."


def _difference(picture: MapPicture, cells: list[float], letters: Sequence[str]) -> str:
    first, second = (
        f"{letter} ({scheme})"
        for letter, scheme in zip(letters, picture.request.schemes, strict=True)
    )
    worse, better = sum(value > 0 for value in cells), sum(value < 0 for value in cells)
    if not worse + better:
        return f"{first} and {second} have the same error in every cell: take the smaller one."
    good, bad = (second, first) if worse > better else (first, second)
    share = max(worse, better) / len(cells)
    row, column = picture.element_at(*picture.grid.peak)
    largest = cells_peak(cells)
    loser = letters[0] if largest > 0 else letters[1]
    return (
        f"{good} has the smaller error in {share:.0%} of the cells, {bad} in "
        f"{min(worse, better) / len(cells):.0%}; they differ most at ({row:,}, {column:,}), by "
        f"{format_value(abs(largest), 3)} to the loss of {loser}."
    )


def cells_peak(cells: Sequence[float]) -> float:
    """The cell of the largest magnitude, with its sign."""
    return max(cells, key=abs)
