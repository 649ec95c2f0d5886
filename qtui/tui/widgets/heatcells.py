"""Levels of a grid as characters, one line of the terminal at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style

from qtui.tui.widgets.drawing import Drawing
from qtui.tui.widgets.heatgrid import NOTHING

Cells = list[tuple[str, Style]]


@dataclass(frozen=True)
class Picture:
    """`levels` of the drawing's ramp, flat, `width` to a grid row; `cursor` is (row, column)."""

    drawing: Drawing
    levels: Sequence[int]
    width: int
    cursor: tuple[int, int]

    def half_blocks(
        self, top: int, bottom: int | None, columns: Sequence[int], ink: Style, blank: Style
    ) -> Cells:
        """Grid rows `top` and `bottom` (None below the last) in one line of the terminal: the
        upper one as foreground, the lower one as background."""
        ramp, glyphs, levels = self.drawing.ramp, self.drawing.glyphs, self.levels
        cursor_row, cursor_column = self.cursor
        on_top, on_bottom = cursor_row == top, cursor_row == bottom
        cells = []
        for column in columns:
            upper = levels[top * self.width + column]
            lower = levels[bottom * self.width + column] if bottom is not None else None
            here = column == cursor_column and (on_top or on_bottom)
            if NOTHING in (upper, lower):
                cells.append((glyphs.times, ink if here else blank))
            elif here and on_top and (on_bottom or lower is None):
                glyph = glyphs.full if on_bottom else glyphs.upper_half
                cells.append((glyph, Style(color=ink.color, bgcolor=blank.bgcolor)))
            elif here and lower is not None:
                # The cursor's half in its own colour, the other half as it is.
                first = ink.color if on_top else ramp.color(upper)
                second = ink.color if on_bottom else ramp.color(lower)
                cells.append((glyphs.upper_half, Style(color=first, bgcolor=second)))
            elif lower is None:
                cells.append((glyphs.upper_half, blank + ramp.ink(upper)))
            elif upper == lower:
                cells.append((" ", ramp.fill(upper)))
            else:
                cells.append((glyphs.upper_half, ramp.pair(upper, lower)))
        return cells

    def shades(self, row: int, columns: Sequence[int], ink: Style, blank: Style) -> Cells:
        """Grid row `row` as glyphs, where colours cannot carry the level."""
        ramp = self.drawing.ramp
        styles = [blank + ramp.ink(level) for level in range(ramp.levels)]
        cursor_style = blank + ink
        cells = []
        for column in columns:
            level = self.levels[row * self.width + column]
            glyph = self.drawing.glyphs.times if level == NOTHING else ramp.glyph(level)
            here = (row, column) == self.cursor
            cells.append((glyph, cursor_style if here else styles[max(level, 0)]))
        return cells
