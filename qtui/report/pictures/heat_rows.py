"""Draws a Heat as a table of numbers, each in the shade or the colour of its magnitude."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

from qtui.report.faces.columns import fold, shorten
from qtui.report.numbers import format_value
from qtui.report.pictures.cells import Put, TextLine, Tone, heat
from qtui.report.pictures.glyphs import Brush
from qtui_core.dataclass import dataclass
from qtui_core.lab.results import Heat

#: The least cells of a number, and the largest share of the width for the names of rows.
_LEAST: Final = 11
_NAMES: Final = 0.4
#: The texts for a matrix without a scale, and for one with a single scale.
_NONE, _ONE = "no scale", "one scale"
_WHY: Final = (
    "Blocks are scales, at the side of the axis along which they differ. {free} outside: they "
    "multiply the result once. {held} inside the sum: the matrix is quantized anew along its other "
    "axis, or its scales are folded into the other matrix."
)
_SHORT_WHY: Final = "{free} scales outside of the sum, {held} inside of it"
#: Cells of the two matrices of a product.
_MATRICES: Final = 11


def shares_of(found: Heat) -> list[list[float | None]]:
    """Each number as a share, 0 at the least and 1 at the largest, on the Heat's scale; None for
    numbers without a colour."""
    values = [[_measured(found, value) for value in row] for row in found.values]
    known = [value for row in values for value in row if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    span = (high - low) or 1.0
    return [[None if v is None else (v - low) / span for v in row] for row in values]


def _measured(found: Heat, value: float | None) -> float | None:
    if value is None or not math.isfinite(value) or (found.log and value <= 0):
        return None
    return math.log10(value) if found.log else value


def heat_lines(
    found: Heat, width: int, height: int | None, brush: Brush, *, scales: bool = False
) -> list[TextLine]:
    """A line for each row. With `scales` each cell shows the two matrices of its product and their
    scales, if they are known. The last line counts rows that do not fit."""
    names = max((len(name) for name in found.rows), default=0)
    left = min(names, max(10, int(width * _NAMES)))
    columns = max(1, len(found.columns))
    cell = max(_LEAST, *(len(name) + 2 for name in found.columns)) if found.columns else _LEAST
    scales = scales and bool(found.products)
    if scales:
        cell += _MATRICES
    cell = max(3, min(cell, (width - left - 1) // columns))
    title = (
        found.title
        if len(found.title) <= width
        else found.title[: width - 1] + brush.glyphs.ellipsis
    )
    lines: list[TextLine] = [[Put(0, title, "title")]]
    for texts in zip_longest(*(fold(name, cell - 1) for name in found.columns), fillvalue=""):
        lines.append(
            [
                Put(left + 1 + at * cell, text.center(cell - 1), "label")
                for at, text in enumerate(texts)
            ]
        )
    below: list[TextLine] = [[], _legend(found, brush)]
    for why in (_WHY, _SHORT_WHY) if scales else ():
        told = fold(why.format(free=brush.glyphs.shades[4], held=brush.glyphs.shades[2]), width)
        below = [[], *([Put(0, text, "quiet")] for text in told)]
        if height is None or len(lines) + len(found.rows) + len(below) <= height:
            break
    room = len(found.rows) if height is None else max(2, height - len(lines) - len(below))
    if room < len(found.rows):
        del below[0]  # a row more in place of a blank
        room += 1
    shown = len(found.rows) if len(found.rows) <= room else room - 1
    shares = shares_of(found)
    for row in range(shown):
        line = [Put(0, shorten(found.rows[row], left).rjust(left), "label")]
        for at, value in enumerate(found.values[row]):
            column = left + 1 + at * cell
            room, numbered = cell - 1, True
            if scales:
                room -= _MATRICES
                numbered = room >= _LEAST - 1
                where = column + room if numbered else column
                sides = scale_sides(found, row, at)
                line += _matrices(where, sides, min(cell - 1, _MATRICES), brush)
            if numbered:
                line.append(_cell(column, value, shares[row][at], room, brush))
        lines.append(line)
    if shown < len(found.rows):
        left_out = f"and {len(found.rows) - shown} rows more: the table has them"
        lines.append([Put(0, left_out, "quiet")])
    lines += below
    return [[_cut(put, width) for put in line] for line in lines]


def _cut(put: Put, width: int) -> Put:
    """The text, cut off at the width."""
    return Put(put.column, put.text[: max(0, width - put.column)], put.tone)


@dataclass(frozen=True)
class ScaleSides:
    """The two matrices of a product, and on which of their four sides there is a vector of scales:
    left and right of the first, left and right of the second. The two sides in the middle are along
    the summed axis. `note` is the text if there is no vector."""

    left: str
    right: str
    sides: tuple[bool, bool, bool, bool]
    note: str = ""


def scale_sides(found: Heat, row: int, column: int) -> ScaleSides:
    """The sides with scales in a cell, whose row is a scheme and whose column a product."""
    product, axes = found.products[column], found.scale_axes[row]
    if axes is None:
        return ScaleSides(product.left, product.right, (False,) * 4, _NONE)
    one, other = (axes.get(name.rstrip("'"), ()) for name in (product.left, product.right))
    sides = (
        product.rows in one, product.summed in one, product.summed in other,
        product.columns in other,
    )  # fmt: skip
    return ScaleSides(product.left, product.right, sides, "" if any(sides) else _ONE)


def _matrices(column: int, at: ScaleSides, width: int, brush: Brush) -> list[Put]:
    """The two matrices of a cell: a full block for each vector of scales outside the sum, and a
    pale one for each inside it."""
    outer, inner, other, last = at.sides
    note = at.note
    if not note and width < _MATRICES - 1:  # no room for the matrices
        note = "inner" if inner or other else "outer"
        note = "both" if (outer or last) and (inner or other) else note
    if note:
        return [Put(column, _fitting((note, note.split()[0]), width).center(width), "quiet")]
    free, held = brush.glyphs.shades[4], brush.glyphs.shades[2]
    parts: tuple[tuple[str, Tone], ...] = (
        (free if outer else " ", "strong"), (f" {at.left:<2}", "label"),
        (held if inner else " ", "quiet"), (held if other else " ", "quiet"),
        (f" {at.right:<2}", "label"), (free if last else " ", "strong"),
    )  # fmt: skip
    column += max(0, (width - sum(len(text) for text, _ in parts)) // 2)
    line = []
    for text, tone in parts:
        line.append(Put(column, text, tone))
        column += len(text)
    return line


def _fitting(texts: Iterable[str], width: int) -> str:
    each = list(texts)
    return next((text for text in each if len(text) <= width), each[-1][:width])


def _number(value: float, width: int) -> str:
    """A number in the digits that fit, without the zero before its point if need be; a cut one
    would be another number, and where none fits the colour says it alone."""
    texts = [format_value(value, digits) for digits in (3, 2, 1)]
    texts += [text.replace("0.", ".", 1) for text in texts]
    return next((text for text in texts if len(text) <= width), "")


def _cell(column: int, value: float | None, share: float | None, width: int, brush: Brush) -> Put:
    if value is None:
        return Put(column, ("-" if brush.ascii else "·").center(width), "quiet")
    text = _number(value, width)
    if share is None:
        return Put(column, text.center(width), "quiet")
    if not brush.shaded:
        return Put(column, text.center(width), heat(share))
    sign = brush.shade(max(share, 1e-9))
    if len(text) + 2 <= width:
        text = f"{text} {sign}"
    return Put(column, text.center(width))


def _legend(found: Heat, brush: Brush) -> list[Put]:
    values: Sequence[float] = [
        v for row in found.values for v in row if v is not None and math.isfinite(v)
    ]
    if not values:
        return [Put(0, "no number is known yet", "quiet")]
    low, high = format_value(min(values), 2), format_value(max(values), 2)
    line, at = [Put(0, low, "quiet")], len(low) + 1
    steps = 12
    for step in range(steps):
        share = step / (steps - 1)
        sign = brush.shade(max(share, 1e-9)) if brush.shaded else " "
        line.append(Put(at + step, sign, "value" if brush.shaded else heat(share)))
    scale = ", logarithmic" if found.log else ""
    line.append(Put(at + steps + 1, f"{high}  {found.unit}{scale}", "quiet"))
    return line
