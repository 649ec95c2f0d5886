"""Bars in named groups, each from zero on the scale of its group, in the cells of a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qtui.report.pictures.cells import CellGrid, TextLine, hue
from qtui.report.pictures.glyphs import Brush
from qtui.report.pictures.scene import THE_RUN_BEFORE
from qtui_core.dataclass import dataclass
from qtui_core.lab.results import LabBar, LabBars

#: Cells of a bar at least, where its seeds are written behind it too.
_LEAST: Final = 16
#: Names are no longer than that share of the width.
_NAMES: Final = 0.4


@dataclass(frozen=True)
class BarScale:
    """Where zero and the values of a group lie, 0 to 1. All groups have zero in one place."""

    zero: float
    size: float

    def place(self, value: float) -> float:
        return min(1.0, max(0.0, self.zero + (1 - self.zero) * value / self.size))


def bar_scales(found: LabBars, behind: LabBars | None = None) -> list[BarScale]:
    """The scale of each group: its largest value at the end, and zero at the left or, where a group
    has values below it, as far to the right as they need."""
    reaches = []
    for name, bars in found.groups:
        earlier = values_of(behind, name).values()
        values = [0.0, *earlier]
        for bar in bars:
            values += [bar.value, bar.value if bar.low is None else bar.low]
            values += [bar.value if bar.high is None else bar.high]
        low, high = min(values), max(values)
        # A group that is below zero alone ends at its least value, mirrored.
        reaches.append((low, high or -low or 1.0))
    below = max((-low / high for low, high in reaches), default=0.0)
    return [BarScale(below / (1 + below), high) for _, high in reaches]


def values_of(found: LabBars | None, group: str) -> Mapping[str, float]:
    """The values of the bars of a group by name; none if there is no such group."""
    groups = found.groups if found is not None else ()
    return next(({b.name: b.value for b in bars} for name, bars in groups if name == group), {})


def bar_text(bar: LabBar, *, spread: bool) -> str:
    """The value of a bar, and the least and the most of its seeds."""
    text = f"{bar.value:+.3g}"
    if spread and bar.low is not None and bar.high is not None and bar.low < bar.high:
        text += f" [{bar.low:+.3g}, {bar.high:+.3g}]"
    return text


def bar_lines(
    found: LabBars, width: int, height: int | None, brush: Brush, behind: LabBars | None = None
) -> list[TextLine]:
    """A line a bar, with its value, and a line a group, with what is noted of it. Where there is no
    room for the latter, the name of a group stands before its first bar; groups for which there is
    no room at all are counted."""
    told = 1 + (behind is not None)
    sizes = [len(bars) for _, bars in found.groups]
    roomy = height is None or sum(sizes) + len(sizes) + told <= height
    shown = len(sizes)
    if height is not None and not roomy:
        while shown > 1 and sum(sizes[:shown]) + told + (shown < len(sizes)) > height:
            shown -= 1
    left_out = len(sizes) - shown
    used = sum(sizes[:shown]) + (shown if roomy else 0)
    grid = CellGrid(width, told + used + bool(left_out))
    grid.put_title(found.title, brush.glyphs.ellipsis)
    _Rows(found, width, brush, roomy).put(grid, shown, behind)
    if left_out:
        grid.put(1 + used, 0, f"and {left_out} more: the table has them", "quiet")
    if behind is not None:
        grid.put(grid.height - 1, 0, f"{brush.glyphs.outlier} {THE_RUN_BEFORE}", "quiet")
    return list(grid.lines())


class _Rows:
    """Where the parts of a line are: names, the bar, its value."""

    def __init__(self, found: LabBars, width: int, brush: Brush, roomy: bool) -> None:
        self.found, self.brush, self.roomy = found, brush, roomy
        every = [bar for _, bars in found.groups for bar in bars]
        self.indent = 2 if roomy else 1 + max((len(name) for name, _ in found.groups), default=0)
        names = max((len(bar.name) for bar in every), default=0)
        self.names = min(names, max(8, int(width * _NAMES) - self.indent))
        self.left = self.indent + self.names + 1
        self.spread = True
        for spread in (True, False):
            texts = max((len(bar_text(bar, spread=spread)) for bar in every), default=0)
            self.width = max(1, width - self.left - texts - 1)
            self.spread = spread
            if self.width >= _LEAST:
                break

    def put(self, grid: CellGrid, shown: int, behind: LabBars | None) -> None:
        row = 1
        scales = bar_scales(self.found, behind)
        for (name, bars), scale in list(zip(self.found.groups, scales, strict=True))[:shown]:
            grid.put(row, 0, name, "label")
            if self.roomy:
                notes = "; ".join(bar.note for bar in bars if bar.note)
                grid.put(row, len(name) + 2, notes, "quiet")
                row += 1
            earlier = values_of(behind, name)
            for number, bar in enumerate(bars):
                self._bar(grid, row, number, bar, scale)
                if bar.name in earlier:
                    at = min(self.width - 1, int(scale.place(earlier[bar.name]) * self.width))
                    grid.put(row, self.left + at, self.brush.glyphs.outlier, "strong")
                row += 1

    def _bar(self, grid: CellGrid, row: int, number: int, bar: LabBar, scale: BarScale) -> None:
        brush, tone = self.brush, hue(number)
        fits = len(bar.name) <= self.names
        name = bar.name if fits else bar.name[: self.names - 1] + brush.glyphs.ellipsis
        grid.put(row, self.indent, name, "label")
        low, high = (bar.value if end is None else end for end in (bar.low, bar.high))
        # The longest first: what all seeds reach is full, what one alone reaches is pale, which
        # is on both sides of zero where they differ in sign.
        shades = brush.glyphs.shades
        for start, end, sign in (
            (min(low, 0.0), max(high, 0.0), shades[1]),
            (0.0, bar.value, shades[3 if low < high else 4]),
            (0.0, max(low, 0.0) or min(high, 0.0), shades[4]),
        ):
            first, last = sorted(round(scale.place(at) * self.width) for at in (start, end))
            last += first == last and start != end
            grid.put(row, self.left + first, sign * (last - first), tone)
        grid.put(row, self.left + self.width + 1, bar_text(bar, spread=self.spread))
