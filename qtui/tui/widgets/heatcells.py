"""Levels of a grid as characters, one line of the terminal at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from qtui.tui.widgets.drawing import Drawing, Ramp
from qtui.tui.widgets.heatgrid import NOTHING


@dataclass(frozen=True)
class Picture:
    """`levels` of the ramp, flat, `width` to a grid row; `cursor` is (row, column). A line is
    made of segments, runs of equal cells merged into one."""

    drawing: Drawing
    ramp: Ramp
    levels: Sequence[int]
    width: int
    cursor: tuple[int, int]

    def half_blocks(
        self, top: int, bottom: int | None, widths: Sequence[int], ink: Style, blank: Style
    ) -> Iterable[Segment]:
        """Grid rows `top` and `bottom` (None below the last) in one line of the terminal, each
        column so many characters wide: the upper row as foreground, the lower one as
        background."""
        upper_row = self.levels[top * self.width : (top + 1) * self.width]
        lower_row: Sequence[int | None] = [None] * self.width
        if bottom is not None:
            lower_row = self.levels[bottom * self.width : (bottom + 1) * self.width]
        at_row, at_column = self.cursor
        cursor = at_column if at_row in (top, bottom) else -1
        count, before = 0, (NOTHING, NOTHING)
        for column, (upper, lower, width) in enumerate(
            zip(upper_row, lower_row, widths, strict=True)
        ):
            pair = upper, lower
            if pair == before and column != cursor:
                count += width
                continue
            if count:
                yield self._cell(before, count, blank)
            count, before = width, pair  # type: ignore[assignment]
            if column == cursor and width:
                yield self._cursor(pair, (at_row == top, at_row == bottom), width, ink, blank)
                count = 0
        if count:
            yield self._cell(before, count, blank)

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
        """The cursor's half in its own colour, the other half as it is."""
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
        """Grid row `row` as glyphs, where colours cannot carry the level."""
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
