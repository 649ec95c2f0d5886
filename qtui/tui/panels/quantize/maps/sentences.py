"""The sentence of a map, computed from its cells."""

from __future__ import annotations

import math
from collections.abc import Mapping

from qtui.report.numbers import format_value
from qtui.tui.panels.quantize.maps.picture import MapPicture
from qtui_core.answers import ErrorReport
from qtui_core.quantities import percent, plural

Errors = Mapping[str, ErrorReport | None]
# The signs of errors are called uneven from this many standard deviations of fair coins on.
SIGMAS = 3.0
# A value stretches its group's scale if it is this many times the median of the cells' values.
STRETCHED = 4.0


# Pooling -> the words for what the cells show.
WHICH = {"max": "largest errors of the cells", "mean": "mean errors of the cells",
         "nearest": "errors in the middles of the cells"}  # fmt: skip
WHICH_ONE = {"max": "largest error of a cell", "mean": "mean error of a cell",
             "nearest": "error in the middle of a cell"}  # fmt: skip
WHERE = {"max": "Where the two differ most in a cell", "mean": "On the mean of a cell",
         "nearest": "In the middle of a cell"}  # fmt: skip


def map_sentence(picture: MapPicture, errors: Errors) -> str:
    """The sentence of a map; empty if the panel's own sentence about the error fits better.
    `errors` has the known errors over the whole tensor by scheme."""
    sentence = _sentence(picture, errors)
    if not sentence or picture.request.kind == "value":
        return sentence
    beyond = ((scheme, beyond_text(errors.get(scheme))) for scheme in picture.request.schemes)
    return sentence + "".join(f" {scheme} {text}." for scheme, text in beyond if text)


def beyond_text(numbers: ErrorReport | None) -> str:
    """What a scheme did to elements beyond its largest number; "" if there are none."""
    if numbers is None or not numbers.saturated:
        return ""
    return f"clipped {plural(numbers.saturated, 'element')} to its largest number"


def _sentence(picture: MapPicture, errors: Errors) -> str:
    cells = [value for value in picture.grid.cells if math.isfinite(value)]
    match picture.request.kind:
        case "signed" if cells:
            return _bias(picture, cells, errors)
        case "value" if cells and picture.request.pooling == "max":
            return _values(picture, cells)
        case "scale" if cells:
            return _scales(picture, cells)
        case "code" if cells:
            return _codes(picture, cells)
        case "difference" if cells:
            return _difference(picture, cells, errors)
    return ""


def _bias(picture: MapPicture, cells: list[float], errors: Errors) -> str:
    up, down = sum(value > 0 for value in cells), sum(value < 0 for value in cells)
    pooling = picture.request.pooling
    scheme, which = picture.request.schemes[0], WHICH[pooling]
    if not up + down:
        return f"{scheme} has no error here: every element of the map is exactly on a level."
    counts = f"{up:,} of the {up + down:,} {which} are above zero (values made larger)"
    if up + down == 1:
        counts = f"The {WHICH_ONE[pooling]} is {'above' if up else 'below'} zero in one place"
    if up + down <= SIGMAS**2:  # so few are within SIGMAS, whatever their signs
        return f"{counts}: too few to say whether the errors of {scheme} have a bias."
    if abs(up - down) <= SIGMAS * math.sqrt(up + down):
        return (
            f"{counts}, as many as a fair coin may give: the errors of {scheme} show no bias, and "
            f"without one they cancel in sums."
        )
    side = "up" if up > down else "down"
    return (
        f"{counts}: {scheme} moves values {side} more often than a fair coin would, and such "
        f"errors add up in sums; rounding to nearest and a zero point reduce this bias."
    )


def _values(picture: MapPicture, cells: list[float]) -> str:
    sizes = sorted(map(abs, cells))
    largest, middle = sizes[-1], sizes[len(sizes) // 2]
    row, column = picture.element_at(*picture.grid.peak)
    if not largest:
        finite = "" if len(cells) == len(picture.grid.cells) else " finite"
        return f"All{finite} values shown are 0: any scheme keeps them exactly."
    if len(cells) == 1:
        return ""  # there is nothing to hold it against
    if not middle:
        return (
            f"At least half of the cells hold nothing but zeros; the largest value, "
            f"{format_value(largest, 3)} in magnitude, is at ({row:,}, {column:,})."
        )
    times = largest / middle
    what = (
        f"The largest value, {format_value(largest, 3)} in magnitude at ({row:,}, {column:,}), is "
        f"{times:.1f} times that of the median cell"
    )
    if times > STRETCHED:
        return (
            f"{what}: elements that share a scale with it get coarser steps; with smaller groups "
            f"these are fewer."
        )
    return f"{what}: nothing shown here stretches a scale."


def _scales(picture: MapPicture, cells: list[float]) -> str:
    sizes = sorted(size for size in map(abs, cells) if size)
    scheme = picture.request.schemes[0]
    if not sizes:
        return f"All scales of {scheme} shown here are 0: their groups hold nothing but zeros."
    least, most = sizes[0], sizes[-1]
    if most <= 1.001 * least:
        return (
            f"{scheme} has one scale here, {format_value(most, 3)}, set by the largest element for "
            f"all; with smaller groups the scales would follow the values."
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
    if len(counts) == 1:
        return (
            f"Code {code:g} of {scheme} stands in the middle of every cell: these elements share "
            f"one level; a smaller group or a format with more bits may distinguish them."
        )
    seen = f"{len(counts):,} different codes of {scheme} stand in the middles of the cells"
    often = f"the most frequent, {code:g}, in {percent(share)} of them"
    if share > 0.5:
        return (
            f"{seen}, {often}: most of these elements share one level; a smaller group or a format "
            f"with more bits may distinguish them."
        )
    return f"{seen}, {often}."


def _difference(picture: MapPicture, cells: list[float], errors: Errors) -> str:
    a, b = (
        f"{letter} ({scheme})" for letter, scheme in zip("AB", picture.request.schemes, strict=True)
    )
    worse, better = sum(value > 0 for value in cells), sum(value < 0 for value in cells)
    if not worse + better:
        return f"{a} and {b} have the same error in every cell shown: take the one of fewer bits."
    good, share = (b, worse) if worse > better else (a, better)
    has = f"{good} has the smaller error in {percent(share / len(cells))} of the cells"
    if worse == better:
        has = f"{a} and {b} have the smaller error in as many cells"
    row, column = picture.element_at(*picture.grid.peak)
    sentence = (
        f"{WHERE[picture.request.pooling]}, {has}; the largest difference is "
        f"{format_value(max(map(abs, cells)), 3)}, around ({row:,}, {column:,})"
    )
    one, two = (errors.get(scheme) for scheme in picture.request.schemes)
    if one is None or two is None:
        return f"{sentence}."
    first, second = one.sqnr_db, two.sqnr_db
    if first is None or second is None:
        return f"{sentence}."
    if abs(first - second) < 0.05:
        return f"{sentence}; over all elements their SQNR is the same, {first:.1f} dB."
    winner = a if first > second else b
    return f"{sentence}; over all elements {winner} is {abs(first - second):.1f} dB better."
