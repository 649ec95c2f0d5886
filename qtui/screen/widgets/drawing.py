"""How values become cells: colour ramps and glyphs for the terminal in use.

A widget asks for a level (a small integer) and gets a glyph and a precomputed rich Style. The
colours and glyphs of a level depend only on the colour depth and on --ascii, so widgets need not
test for these.

The ramps for 256 colours were chosen from the palette by hand: a general nearest-colour search
turns viridis into uneven bands whose brightness is not even monotone.
"""

from __future__ import annotations

from functools import cached_property

from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.style import Style

from qtui.report.pictures.glyphs import ASCII, UNICODE, Brush
from qtui.screen.depth import Depth
from qtui.screen.widgets.heatmap.ramps import (
    BLUE_ORANGE_256,
    BLUE_ORANGE_STOPS,
    CIVIDIS_256,
    CIVIDIS_STOPS,
    EIGHT_BIT_CUBE,
    GREYS_256,
    Triplet,
    interpolate,
)
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Ramp:
    """`levels` steps from low to high (or from most negative through zero to most positive).

    `colors` is empty if the terminal cannot show magnitudes by colour; then `glyph` shows them.
    Glyphs are also readable in colour (for example under a cursor).
    """

    colors: tuple[Color, ...]
    glyphs: str
    levels: int

    @property
    def has_colors(self) -> bool:
        """Whether half blocks (two values in a cell) can be used with this ramp."""
        return bool(self.colors)

    def level(self, fraction: float) -> int:
        """The level of a fraction in 0..1; values outside are clamped."""
        return max(0, min(self.levels - 1, int(fraction * self.levels)))

    def color(self, level: int) -> Color:
        return self.colors[level]

    def glyph(self, level: int) -> str:
        return self.glyphs[level]

    def pair(self, top: int, bottom: int) -> Style:
        """The style of an upper half block that shows two levels in one cell."""
        return self.pairs[top * self.levels + bottom]

    def fill(self, level: int) -> Style:
        """The style of a blank cell that shows one level."""
        return self._fills[level]

    def ink(self, level: int) -> Style:
        """The style of a glyph in the colour of one level."""
        return self._inks[level] if self.colors else Style.null()

    # Made once: making a style costs more than everything else about a cell.

    @cached_property
    def pairs(self) -> tuple[Style, ...]:
        """The style of `pair(top, bottom)` at index top * levels + bottom."""
        return tuple(Style(color=top, bgcolor=low) for top in self.colors for low in self.colors)

    @cached_property
    def _fills(self) -> tuple[Style, ...]:
        return tuple(Style(bgcolor=color) for color in self.colors)

    @cached_property
    def _inks(self) -> tuple[Style, ...]:
        return tuple(Style(color=color) for color in self.colors)


def palette_color(number: int) -> Color:
    """Colour `number` of the 256-colour palette, sent as this number without another search for a
    match.

    The RGB triplet is included because without it Textual's ANSI filter turns the colour into 24
    bits.
    """
    return Color(
        f"color({number})",
        ColorType.EIGHT_BIT,
        number=number,
        triplet=ColorTriplet(*EIGHT_BIT_CUBE[number]),
    )


class Drawing:
    """The ramps and glyphs of one terminal.

    ramp         0..1 magnitudes, dark to bright (cividis: also readable for colour-blind eyes)
                 (24 levels: with 32 a zoomed map of noise took a tenth more bytes, over 40 kB)
    signed_ramp  negative blue, zero neutral, positive orange; an odd number of levels, the
                 middle one is zero
    grey_ramp    for what is behind something else (density, grid)
    """

    def __init__(self, depth: Depth = Depth.TRUECOLOR, *, ascii: bool = False) -> None:
        self.depth = depth
        self.ascii = ascii
        self.glyphs = ASCII if ascii else UNICODE

    @property
    def brush(self) -> Brush:
        """What the terminal can draw, for `qtui.report.pictures`."""
        return Brush(ascii=self.ascii, shaded=not self.ramp.has_colors)

    @property
    def half_blocks(self) -> bool:
        """Whether a cell can show two values: needs colour and a half-block glyph."""
        return self.depth in (Depth.TRUECOLOR, Depth.C256) and not self.ascii

    @cached_property
    def ramp(self) -> Ramp:
        return self._ramp(CIVIDIS_STOPS, CIVIDIS_256, self.glyphs.shades, 24)

    @cached_property
    def signed_ramp(self) -> Ramp:
        shades = self.glyphs.negative[:0:-1] + self.glyphs.positive
        return self._ramp(BLUE_ORANGE_STOPS, BLUE_ORANGE_256, shades, 23)

    @cached_property
    def grey_ramp(self) -> Ramp:
        return self._ramp(((28, 28, 28), (238, 238, 238)), GREYS_256, self.glyphs.shades, 24)

    def _ramp(
        self, stops: tuple[Triplet, ...], picked: tuple[int, ...], shades: str, levels: int
    ) -> Ramp:
        if self.depth is Depth.TRUECOLOR:
            colors = tuple(
                Color.from_rgb(*interpolate(stops, i / (levels - 1))) for i in range(levels)
            )
        elif self.depth is Depth.C256:
            colors = tuple(palette_color(number) for number in picked)
        else:
            return Ramp((), shades, len(shades))
        count = len(colors)
        glyphs = "".join(shades[i * len(shades) // count] for i in range(count))
        return Ramp(colors, glyphs, count)
