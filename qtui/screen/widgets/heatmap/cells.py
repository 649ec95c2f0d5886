"""Levels of a grid as characters, one line of the terminal at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.segment import Segment
from rich.style import Style

from qtui.screen.widgets.drawing import Drawing, Ramp
from qtui.screen.widgets.heatmap.grid import NOTHING
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class HeatPicture:
    """`levels` of the ramp, flat, `width` to a grid row; `cursor` is (row, column). A line consists
    of segments, in which runs of equal cells are merged."""

    drawing: Drawing
    ramp: Ramp
    levels: Sequence[int]
    width: int
    cursor: tuple[int, int]

    def half_blocks(
        self, top: int, bottom: int | None, widths: Sequence[int], ink: Style, blank: Style
    ) -> Iterable[Segment]:
        """Grid rows `top` and `bottom` (None below the last) in one line of the terminal, each
        column as many characters wide as `widths` says: the upper row as foreground, the lower as
        background."""
        width, levels, pairs, steps = self.width, self.levels, self.ramp.pairs, self.ramp.levels
        half = self.drawing.glyphs.upper_half
        upper_row = levels[top * width : (top + 1) * width]
        lower_row: Sequence[int | None] = [None] * width
        if bottom is not None:
            lower_row = levels[bottom * width : (bottom + 1) * width]
        at_row, at_column = self.cursor
        # The columns on both sides of the cursor, and the cursor between them.
        stops = [at_column, at_column + 1] if at_row in (top, bottom) else []
        segments: list[Segment] = []
        first = 0
        for stop in (*stops, width):
            if stops and first == at_column < stop and widths[first]:
                on = at_row == top, at_row == bottom
                pair = upper_row[first], lower_row[first]
                segments.append(self._cursor(pair, on, widths[first], ink, blank))
            else:
                columns = slice(first, stop)
                count, upper, lower = 0, -2, None
                for above, below, wide in zip(
                    upper_row[columns], lower_row[columns], widths[columns], strict=True
                ):
                    if above == upper and below == lower:
                        count += wide
                        continue
                    if count:
                        if lower is None or lower == upper or upper < 0 or lower < 0:
                            segments.append(self._cell((upper, lower), count, blank))
                        else:
                            segments.append(Segment(half * count, pairs[upper * steps + lower]))
                    count, upper, lower = wide, above, below
                if count:
                    segments.append(self._cell((upper, lower), count, blank))
            first = stop
        return segments

    def _cell(self, pair: tuple[int, int | None], count: int, blank: Style) -> Segment:
        glyphs, ramp = self.drawing.glyphs, self.ramp
        upper, lower = pair
        if NOTHING in pair:
            return Segment(glyphs.times * count, blank)
        if lower is None:
            return Segment(glyphs.upper_half * count, blank + ramp.ink(upper))
        if upper == lower:
            return Segment(" " * count, ramp.fill(upper))
        return Segment(glyphs.upper_half * count, ramp.pair(upper, lower))

    def _cursor(
        self,
        pair: tuple[int, int | None],
        on: tuple[bool, bool],
        count: int,
        ink: Style,
        blank: Style,
    ) -> Segment:
        """The cursor's half in its own colour, the other half unchanged."""
        glyphs, ramp = self.drawing.glyphs, self.ramp
        (upper, lower), (on_top, on_bottom) = pair, on
        if NOTHING in pair:
            return Segment(glyphs.times * count, ink)
        if on_top and (on_bottom or lower is None):
            glyph = glyphs.full if on_bottom else glyphs.upper_half
            return Segment(glyph * count, Style(color=ink.color, bgcolor=blank.bgcolor))
        assert lower is not None
        first = ink.color if on_top else ramp.color(upper)
        second = ink.color if on_bottom else ramp.color(lower)
        return Segment(glyphs.upper_half * count, Style(color=first, bgcolor=second))

    def shades(
        self, row: int, widths: Sequence[int], ink: Style, blank: Style
    ) -> Iterable[Segment]:
        """Grid row `row` as glyphs, for terminals whose colours cannot show the level."""
        ramp, times = self.ramp, self.drawing.glyphs.times
        cursor = self.cursor[1] if row == self.cursor[0] else -1
        levels = self.levels[row * self.width : (row + 1) * self.width]
        count, before = 0, NOTHING

        def cells(level: int, width: int) -> Segment:
            if level == NOTHING:
                return Segment(times * width, blank)
            return Segment(ramp.glyph(level) * width, blank + ramp.ink(level))

        for column, (level, width) in enumerate(zip(levels, widths, strict=True)):
            if level == before and column != cursor:
                count += width
                continue
            if count:
                yield cells(before, count)
            count, before = width, level
            if column == cursor and width:
                yield Segment(cells(level, width).text, blank + ink)
                count = 0
        if count:
            yield cells(before, count)
