"""The roofline (Williams, Waterman, Patterson 2009): operations per second against operations per
byte, both logarithmic, with the operations of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final

from qtui.report.pictures.cells import ACROSS
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.curve.dots import Stroke, Track, cells_of_track
from qtui.screen.panel.view import View
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, right, window
from qtui.tui.panels.hardware.operations_view import detail_lines, nothing, operations_meaning
from qtui.tui.panels.hardware.shown import LETTERS, HardwareShown
from qtui.tui.panels.hardware.units import rate, ratio, scaled_up, seconds, speed
from qtui_core.dataclass import dataclass
from qtui_core.roofline.operation import Placed, Roofs

#: Cells left of the picture, and of the list at its right if there is room.
_LEFT: Final = 8
_LIST: Final = 40
_LONG_LIST: Final = 64
WIDE: Final = 110
VERY_WIDE: Final = 160


@dataclass(frozen=True)
class Axes:
    """The edges of the picture as base-10 logarithms: x of operations per byte, y of operations per
    second."""

    left: float
    right: float
    bottom: float
    top: float
    width: int
    height: int

    def column(self, intensity: float) -> int:
        share = (log10(intensity) - self.left) / (self.right - self.left)
        return max(0, min(self.width - 1, int(share * self.width)))

    def row(self, operations: float) -> int:
        """The row of a rate, counted from the bottom."""
        share = (log10(operations) - self.bottom) / (self.top - self.bottom)
        return max(0, min(self.height - 1, int(share * self.height)))


class RooflineView(View[HardwareShown]):
    """The operations of the plan under the roofs of the device."""

    TITLE = "Roofline"
    HELP = """\
**Roofline**: operations per second against operations per byte. Below the slope an operation is
limited by the memory, below a flat roof by the units of its data type. The dotted slope above is
L2; a dotted roof below the stated one was measured on this machine.
"""
    CURSOR = True

    def draw(self, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
        """The picture, the meaning of its letters, and the chosen operation."""
        placed, roofs = shown.placed, shown.roofs
        if not placed or roofs is None:
            return nothing(shown, canvas)
        at = min(shown.line, len(placed) - 1)
        details = detail_lines(placed[at], shown, canvas)[:3]
        beside = canvas.width >= WIDE
        width = canvas.width - (_list_width(canvas) + 2 if beside else 0)
        # If there is little room, the picture is more important than the list.
        listed = 0 if beside or canvas.height < 8 else min(len(placed), max(2, canvas.height // 5))
        height = canvas.height - len(details) - listed - 2
        if height < 4:
            details, height = [], canvas.height - listed - 2
        axes = axes_of(placed, roofs, width - _LEFT, max(2, height))
        lines = picture(placed, roofs, axes, at, canvas.glyphs, shown.reached)
        shown_list = _list(placed, at, len(lines) if beside else listed, canvas, beside)
        if beside:
            for line, entry in zip(lines, shown_list, strict=False):
                line += [Put(width + 2 + put.column, put.text, put.tone) for put in entry]
            return [*lines, *details]
        return [*lines, *shown_list, *details]

    def meaning(self, shown: HardwareShown) -> str:
        return operations_meaning(shown)


def axes_of(placed: Sequence[Placed], roofs: Roofs, width: int, height: int) -> Axes:
    """Axes that contain everything; the x axis ends at whole powers of ten."""
    intensities = [each.operation.intensity for each in placed]
    rates = [each.rate for each in placed]
    left = floor(log10(min(*intensities, 1.0)))
    right_edge = ceil(log10(2 * max(*intensities, *(each.ridge for each in placed))))
    bottom = log10(min(each.attainable for each in placed) / 2)
    return Axes(left, right_edge, bottom, log10(1.5 * max(rates)), width, height)


def picture(
    placed: Sequence[Placed],
    roofs: Roofs,
    axes: Axes,
    at: int,
    glyphs: Glyphs,
    reached: tuple[float, float] | None = None,
) -> list[list[Put]]:
    """The roofs as lines, the operations as letters, and the axes. `reached` are measured bytes and
    operations per second, drawn as a dotted roof."""
    ascii = glyphs.full == "#"
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    dtypes = list(dict.fromkeys(each.operation.dtype for each in placed))
    fastest = max(dtypes, key=lambda dtype: roofs.rate_of(dtype)[0])
    for dtype in sorted(dtypes, key=lambda name: name == fastest):
        stroke: Stroke = "thin" if dtype == fastest else "dotted"
        track = _roof(roofs.memory, roofs.rate_of(dtype)[0], axes, stroke)
        for cell, sign in cells_of_track(track, axes.height, 1.0, ascii=ascii).items():
            cells[cell] = (sign, "bar")
    if roofs.l2 is not None:
        track = _roof(roofs.l2, roofs.rate_of(fastest)[0], axes, "dotted")
        for cell, sign in cells_of_track(track, axes.height, 1.0, ascii=ascii).items():
            cells.setdefault(cell, (sign, "quiet"))
    if reached is not None:
        track = _roof(*reached, axes, "dotted")
        for cell, sign in cells_of_track(track, axes.height, 1.0, ascii=ascii).items():
            cells.setdefault(cell, (sign, "expected"))
    taken: set[tuple[int, int]] = set()
    order = [at, *(index for index in range(len(placed)) if index != at)]
    for index in order:
        place = _free(placed[index], axes, taken)
        if place is not None:
            taken.add(place)
            letter = LETTERS[index % len(LETTERS)]
            cells[place] = (letter, "cursor" if index == at else "best")
    lines = []
    for y in range(axes.height - 1, -1, -1):
        line = [
            right(_LEFT - 2, _row_label(axes, y), "quiet"),
            Put(_LEFT - 1, glyphs.vertical, "quiet"),
        ]
        line += _runs(cells, y, axes.width)
        lines.append(line)
    lines += _below(axes, glyphs)
    _label_roofs(lines, roofs, dtypes, axes, taken)
    return lines


def _roof(bandwidth: float, top: float, axes: Axes, stroke: Stroke) -> Track:
    """A roof as a line: at each column the smaller of bandwidth times intensity and `top`, as a
    share of the height; None below the picture."""
    values: list[float | None] = []
    points = axes.width * ACROSS
    for point in range(points):
        intensity = 10 ** (axes.left + (axes.right - axes.left) * (point + 0.5) / points)
        height = log10(min(top, bandwidth * intensity))
        share = (height - axes.bottom) / (axes.top - axes.bottom)
        values.append(share if share >= 0 else None)
    return Track("roof", stroke, tuple(values))


def _free(each: Placed, axes: Axes, taken: set[tuple[int, int]]) -> tuple[int, int] | None:
    """The cell of an operation; if it is taken, a free cell below or beside it."""
    row, column = axes.row(each.attainable), axes.column(each.operation.intensity)
    for shift in range(axes.width):
        for x in (column + shift, column - shift):
            for y in range(row, max(-1, row - 3), -1):
                if (y, x) not in taken and 0 <= x < axes.width:
                    return y, x
    return None


def _runs(cells: dict[tuple[int, int], tuple[str, str]], y: int, width: int) -> list[Put]:
    """The cells of a row as texts; neighbours of the same tone are one text."""
    puts: list[Put] = []
    for x in range(width):
        if (y, x) not in cells:
            continue
        sign, tone = cells[y, x]
        last = puts[-1] if puts else None
        if last and last.tone == tone and last.column + len(last.text) == _LEFT + x:
            puts[-1] = Put(last.column, last.text + sign, last.tone)
        else:
            puts.append(Put(_LEFT + x, sign, tone))  # type: ignore[arg-type]
    return puts


def _row_label(axes: Axes, y: int) -> str:
    """The label of the power of ten in this row; blank without one."""
    step = (axes.top - axes.bottom) / axes.height
    low = axes.bottom + y * step
    power = ceil(low - 1e-9)
    if power >= low + step:
        return ""
    number, prefix = scaled_up(10.0**power)
    return f"{number:.0f} {prefix}"


def _below(axes: Axes, glyphs: Glyphs) -> list[list[Put]]:
    """The x axis, and below it the powers of ten of operations per byte."""
    labels: list[Put] = []
    free = 0
    for power in range(round(axes.left), round(axes.right) + 1):
        text = f"{10.0**power:g}" if power < 0 else f"{10**power:,}"
        column = min(axes.column(10.0**power), axes.width - len(text))
        if column >= free:
            labels.append(Put(_LEFT + column, text, "quiet"))
            free = column + len(text) + 2
    title = "op/byte"
    if free + len(title) <= axes.width:
        labels.append(right(_LEFT + axes.width, title, "quiet"))
    else:
        labels[-1] = right(_LEFT + axes.width, title, "quiet")
    return [[Put(_LEFT - 1, glyphs.baseline * (axes.width + 1), "quiet")], labels]


def _label_roofs(
    lines: list[list[Put]],
    roofs: Roofs,
    dtypes: Sequence[str],
    axes: Axes,
    taken: set[tuple[int, int]],
) -> None:
    """Names the roofs in empty cells: flat roofs above their left end, the slope beside it."""
    for dtype in dtypes:
        if dtype not in roofs.rates:
            continue  # computed in another data type, whose roof is drawn
        top = roofs.rates[dtype]
        text = f"{dtype} {rate(top, dtype)}"
        row = axes.row(top)
        column = max(0, axes.column(top / roofs.memory) - len(text) - 1)
        _put_free(lines, axes, row, column, text, taken)
    middle = 10 ** (axes.left + 0.3 * (axes.right - axes.left))
    row = axes.row(max(roofs.memory * middle, 10**axes.bottom))
    text = f"memory {speed(roofs.memory)}"
    _put_free(lines, axes, row, max(0, axes.column(middle) - len(text) - 2), text, taken)


def _put_free(
    lines: list[list[Put]],
    axes: Axes,
    row: int,
    column: int,
    text: str,
    taken: set[tuple[int, int]],
) -> None:
    """Writes a text in this row or one of the two above, where it covers nothing."""
    for y in range(row, min(axes.height, row + 3)):
        line = lines[axes.height - 1 - y]
        start, end = _LEFT + column, _LEFT + column + len(text)
        if all(put.column >= end or put.column + len(put.text) <= start for put in line):
            line.append(Put(start, text, "label"))
            return


def _list_width(canvas: Canvas) -> int:
    return _LONG_LIST if canvas.width >= VERY_WIDE else _LIST


def _list(
    placed: Sequence[Placed], at: int, room: int, canvas: Canvas, beside: bool
) -> list[list[Put]]:
    """The meaning of the letters, with the chosen operation marked."""
    width = _list_width(canvas) if beside else canvas.width
    found: list[list[Put]] = []
    for index in window(len(placed), at, room) if room else ():
        each = placed[index]
        letter = LETTERS[index % len(LETTERS)]
        name = shortened(f"{letter} {each.operation.name}", width - 21, canvas.glyphs.ellipsis)
        found.append(
            [
                Put(0, name, "cursor" if index == at else "value"),
                right(width - 11, ratio(each.operation.intensity), "quiet"),
                right(width, seconds(each.seconds), "label"),
            ]
        )
    return found
