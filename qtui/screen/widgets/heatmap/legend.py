"""The ramp of a picture between the ends of its scale."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style

from qtui.report.numbers import format_value
from qtui.screen.widgets.drawing import Ramp
from qtui.screen.widgets.heatmap.grid import HeatScale


def scale_segments(
    scale: HeatScale, ramp: Ramp, steps: int, quiet: Style, blank: Style
) -> list[Segment]:
    """The scale in about `steps` steps, with its ends beside it; a signed scale from the most
    negative number through 0 to the most positive."""
    if scale.log and scale.high <= 0:
        return [Segment("all 0", quiet)]

    def bar(first: int, last: int, count: int) -> list[Segment]:
        cells = []
        for step in range(count):
            # A single step is the middle of its side.
            share = step / (count - 1) if count > 1 else 0.5
            level = first + round(share * (last - first))
            style = blank + ramp.fill(level) if ramp.has_colors else blank
            cells.append(Segment(" " if ramp.has_colors else ramp.glyph(level), style))
        return cells

    high = format_value(scale.high, 2)
    last = ramp.levels - 1
    if not scale.signed:
        low = format_value(scale.low, 2)
        return [
            Segment(f"{low} ", quiet),
            *bar(1 if scale.log else 0, last, steps),
            Segment(f" {high}", quiet),
        ]
    half = steps // 2
    return [
        Segment(f"-{high} ", quiet),
        *bar(0, last // 2 - 1, half),
        Segment(" 0 ", quiet),
        *bar(last // 2 + 1, last, half),
        Segment(f" +{high}", quiet),
    ]
