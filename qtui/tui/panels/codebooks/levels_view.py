"""The levels of each scheme, below the density of the tensor's scaled values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui.engine.answers.codes import CodeColumn
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone
from qtui.tui.panels.codebooks.shown import CodebooksShown
from qtui.tui.panels.codebooks.view import CodebooksView

EIGHTHS = 8
AXIS = (-1.0, -0.5, 0.0, 0.5, 1.0)
MOST_LABEL = 22
#: The least height of the density.
LEAST_HEIGHT = 3


class LevelsView(CodebooksView):
    """The density of the scaled values, and the levels of each scheme below it."""

    TITLE = "Levels"
    HELP = """\
**Levels**: the density of the tensor's values, each divided by the absmax of its group, and the
levels of each scheme.
"""

    def draw(self, shown: CodebooksShown, canvas: Canvas) -> list[TextLine]:
        """The density of the chosen scheme's scaled values, then a line for each scheme."""
        column = shown.column
        if column is None:
            return []
        glyphs = canvas.glyphs
        label = min(MOST_LABEL, 2 + max(len(each.name) for each in shown.columns))
        width = canvas.width - label - 1
        if width < 16:
            return [[Put(0, "too narrow for the levels", "quiet")]]
        room = canvas.height - 2  # the title and the axis
        schemes = shown.columns[: max(1, room - LEAST_HEIGHT)]
        spaced = room - 2 * len(schemes) >= 2 * LEAST_HEIGHT
        height = max(1, room - len(schemes) * (2 if spaced else 1))
        lines: list[list[Put]] = [[Put(0, shortened(_title(column), canvas.width), "label")]]
        lines += _density(column, label, width, height, canvas)
        for each in schemes:
            here = each is column
            mark = glyphs.pointer if here else " "
            name = shortened(f"{mark}{each.name}", label - 1, glyphs.ellipsis)
            tone: Tone = "heading" if here else "value"
            if spaced:
                lines.append([])
            lines.append([Put(0, name, tone), *_ticks(each, label, width, canvas)])
        lines.append(_axis(label, width))
        return [*lines]


def _title(column: CodeColumn) -> str:
    over = "place between min and max" if not column.scheme.symmetric else "x / absmax"
    text = f"density of {over} of its group, {column.name}"
    if column.expected_density:
        text += "; dots: a Gaussian"
    if column.beyond:
        share = column.beyond / max(1, column.total)
        text += f"; {100 * share:.2f}% beyond the outermost level"
    return text


def rebinned(values: Sequence[float], width: int) -> list[float]:
    """The same distribution in `width` bins; a value is split if its bin overlaps two new ones."""
    out = [0.0] * width
    scale = width / len(values)
    for index, value in enumerate(values):
        start, stop = index * scale, (index + 1) * scale
        cell = int(start)
        while cell < stop and cell < width:
            overlap = min(stop, cell + 1) - max(start, cell)
            out[cell] += value * max(0.0, overlap) / scale
            cell += 1
    return out


def _density(
    column: CodeColumn, label: int, width: int, height: int, canvas: Canvas
) -> list[list[Put]]:
    total = max(1, column.total)
    shares = rebinned([count / total for count in column.density], width)
    expected = rebinned(column.expected_density, width) if column.expected_density else []
    # The outermost bins hold the extreme of every group; scaled to them, the rest would be flat.
    inner = [*shares[1:-1], *expected[1:-1]] or [1.0]
    top = max(inner) or max([*shares, *expected]) or 1.0
    lines = []
    for y in range(height):
        ground = (height - 1 - y) * EIGHTHS
        line = []
        for share in shares:
            eighths = min(height * EIGHTHS, round(share / top * height * EIGHTHS))
            if share and not eighths:
                eighths = 1
            line.append(canvas.glyphs.eighths[max(0, min(EIGHTHS, eighths - ground))])
        puts = [Put(label, "".join(line), "bar")]
        for x, share in enumerate(expected):
            above = min(height * EIGHTHS - 1, share / top * height * EIGHTHS)
            if ground <= above < ground + EIGHTHS and line[x] == canvas.glyphs.eighths[0]:
                puts.append(Put(label + x, canvas.glyphs.dot, "expected"))
        lines.append(puts)
    return lines


def _ticks(column: CodeColumn, label: int, width: int, canvas: Canvas) -> list[Put]:
    """A tick at each level."""
    line = [canvas.glyphs.baseline] * width
    for level, code in zip(column.levels, column.codes, strict=True):
        if code not in column.unreachable and math.isfinite(level):
            line[place_of(level, width)] = canvas.glyphs.tick
    return [Put(label, "".join(line), "value")]


def place_of(level: float, width: int) -> int:
    """The cell of a level; levels slightly beyond -1 and 1 are drawn at the ends."""
    return max(0, min(width - 1, int((level + 1) / 2 * width)))


def _axis(label: int, width: int) -> list[Put]:
    puts = [Put(0, "level", "quiet")]
    for value in AXIS:
        text = f"{value:g}"
        at = label + place_of(value, width) - len(text) // 2
        puts.append(Put(min(at, label + width - len(text)), text, "quiet"))
    return puts
