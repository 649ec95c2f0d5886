"""The picture of the Layers view in cells of text."""

from __future__ import annotations

import math

from qtui.report.numbers import format_decibels
from qtui.report.pictures.cells import Paint, Put, TextLine, Tone, heat
from qtui.report.pictures.glyphs import Brush
from qtui.screen.widgets.line import shortened
from qtui.tui.panels.quantize.layers.grid import LayerCell, LayerGrid
from qtui_core.models.quoting import printable

#: Cells of a column with a number in it, with a decimal and without; without the room for either a
#: column is one cell.
NUMBERED = (6, 4)
#: The least range of the colours, dB: less is noise.
LEAST_RANGE = 1.0
#: Lines above and below the rows.
AROUND = 4


def names_width(width: int) -> int:
    """The cells for the names of the rows."""
    return min(26, width // 3)


def grid_columns(width: int) -> int:
    """The most columns of a picture of that width."""
    return max(1, width - names_width(width) - 1)


def unread(brush: Brush) -> str:
    """The sign of a tensor that was not read; the dot of ASCII is its lightest shade."""
    return "?" if brush.ascii else brush.glyphs.dot


def grid_lines(
    grid: LayerGrid,
    width: int,
    at: tuple[int, int] | None,
    scale: tuple[float, float],
    brush: Brush,
) -> list[TextLine]:
    """The layers, a line for each kind of module, and the legend. `at` is the cell of the open
    tensor; `scale` the lowest and the highest SQNR in dB of all that were read."""
    left, glyphs = names_width(width), brush.glyphs
    columns = max((len(cells) for _, cells in grid.rows), default=1)
    cell = next((wide for wide in NUMBERED if columns * wide <= width - left - 1), 1)
    longest = max((len(printable(label)) for label, _ in grid.rows), default=0)
    left = max(left, min(longest, width - 1 - columns * cell))
    scale = (min(scale[0], scale[1] - LEAST_RANGE), scale[1])
    step = 1 if cell in NUMBERED else 10
    numbers = [
        Put(left + 1 + x * cell, str(x * grid.a_cell).rjust(cell - 1), "label")
        for x in range(0, columns, step)
        if left + 1 + x * cell + 6 < width
    ]
    lines: list[TextLine] = [[Put(0, "layer".rjust(left), "label"), *numbers]]
    for y, (label, cells) in enumerate(grid.rows):
        tone: Tone = "strong" if at is not None and at[0] == y else "label"
        name = printable(label)
        if len(name) > left:
            name = glyphs.ellipsis + name[len(name) - left + len(glyphs.ellipsis) :]
        line = [Put(0, name.rjust(left), tone)]
        for x, found in enumerate(cells):
            if found is not None:
                column = left + 1 + x * cell
                line.append(_cell(found, (y, x), column, cell, at, scale, brush))
                if at == (y, x) and cell in NUMBERED:
                    line.append(Put(column - 1, glyphs.pointer, "heading"))
        lines.append(line)
    return [*lines, [], *_legend(grid, width, scale, brush)]


def _cell(
    cell: LayerCell,
    place: tuple[int, int],
    column: int,
    width: int,
    at: tuple[int, int] | None,
    scale: tuple[float, float],
    brush: Brush,
) -> Put:
    room = max(1, width - 1)
    tone: Tone | Paint
    if not cell.read:
        text, tone = unread(brush), "quiet"
    elif cell.sqnr_db is None:
        text, tone = "=", "best"
    elif math.isnan(cell.sqnr_db):
        text, tone = "x", "warning"
    elif math.isinf(cell.sqnr_db):
        text, tone = "!", "warning"
    else:
        share = (scale[1] - cell.sqnr_db) / (scale[1] - scale[0])  # 1 for the worst
        text = f"{cell.sqnr_db:.{int(room > 3)}f}" if room > 1 else _sign(share, brush)
        tone = "value" if brush.shaded else heat(share)
    if at == place and room == 1:
        # In a cell of its own the pointer would hide nothing but the colour.
        text, tone = (
            (text, "cursor") if tone in ("value", "quiet") else (brush.glyphs.pointer, tone)
        )
    return Put(column, text.rjust(room), tone, place)


def _sign(share: float, brush: Brush) -> str:
    """What shows a magnitude: a shade, or a blank on the colour."""
    return brush.shade(max(share, 1e-9)) if brush.shaded else " "


def _legend(
    grid: LayerGrid, width: int, scale: tuple[float, float], brush: Brush
) -> list[TextLine]:
    line, at = [], 0
    low, high = scale
    if math.isfinite(low):
        worst = f"{format_decibels(low)} dB"
        line.append(Put(0, worst, "quiet"))
        at = len(worst) + 1
        for step in range(8):
            share = 1 - step / 7
            tone: Tone | Paint = "value" if brush.shaded else heat(share)
            line.append(Put(at + step, _sign(share, brush), tone))
        best = f"{format_decibels(high)} dB"
        line.append(Put(at + 9, best, "quiet"))
        at += 12 + len(best)
    words = f"{unread(brush)} not read  ! values lost  = exact  x none finite"
    line.append(Put(at, shortened(words, max(1, width - at), brush.glyphs.ellipsis), "quiet"))
    pooled = [Put(0, grid.pooled, "quiet")] if grid.pooled else []
    return [line, pooled]
