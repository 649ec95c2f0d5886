"""A widget that draws the pictures of reports: it turns their paints into styles of the
terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.style import Style

from qtui.report.pictures.cells import LEVELS, Brush, PaintedLine
from qtui.report.pictures.in_svg import HUES
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import Drawing, Ramp, palette_color
from qtui.screen.widgets.heatmap.ramps import brightness
from qtui.screen.widgets.text_picture import Put, TextPicture, Tone

#: The hues of lines in the 256-colour and in the 16-colour palette.
_HUES_256: Final = (74, 172, 36, 169, 98, 142, 73)
_HUES_16: Final = (4, 3, 2, 5, 12, 6, 1)
#: Paint -> the tone of TextPicture that it is drawn in.
_TONES: Final = {
    "title": "value", "label": "label", "quiet": "quiet", "faint": "quiet", "floor": "quiet",
    "point": "strong", "": "value",
}  # fmt: skip
#: The share of the grey ramp for magnitudes that are lost or lie behind something.
_GREYS: Final = 0.35


def brush_of(drawing: Drawing) -> Brush:
    """What the terminal can draw, for `qtui.report.pictures`."""
    return Brush(ascii=drawing.ascii, shaded=not drawing.ramp.has_colors)


def as_texts(lines: Sequence[PaintedLine], at: int = 0) -> list[list[Put]]:
    """The lines of a report's picture as lines of a PaintedPicture, moved `at` columns right."""
    return [
        [
            Put(at + each.column, each.text, cast(Tone, _TONES.get(each.paint, each.paint)))
            for each in sorted(line, key=lambda each: each.column)
        ]
        for line in lines
    ]


class PaintedPicture(TextPicture):
    """A TextPicture that also draws the paints of lines (`hue`) and of magnitudes (`heat`,
    `grey`)."""

    def style_of(self, tone: str) -> Style:
        if tone.startswith("hue"):
            return _hue(int(tone[3:]), self.drawing.depth)
        if tone.startswith("heat"):
            return _magnitude(int(tone[4:]) / (LEVELS - 1), self.drawing.ramp)
        if tone.startswith("grey"):
            return _magnitude(_GREYS * int(tone[4:]) / (LEVELS - 1), self.drawing.grey_ramp)
        return super().style_of(tone)


def _hue(number: int, depth: Depth) -> Style:
    if depth is Depth.TRUECOLOR:
        return Style(color=Color.parse(HUES[number]))
    if depth is Depth.C256:
        return Style(color=palette_color(_HUES_256[number]))
    if depth is Depth.C16:
        plain = _HUES_16[number]
        return Style(color=Color(f"color({plain})", ColorType.STANDARD, number=plain))
    return Style.null()


def _magnitude(share: float, ramp: Ramp) -> Style:
    """A background from the ramp, with a black or white foreground that is readable on it."""
    if not ramp.has_colors:
        return Style.null()
    ground = ramp.color(ramp.level(min(share, 0.9999)))
    triplet = ground.triplet or ColorTriplet(0, 0, 0)
    light = brightness((triplet.red, triplet.green, triplet.blue)) > 0.2
    ink = palette_color(16 if light else 231)
    if ramp.colors and ground.type is ColorType.TRUECOLOR:
        ink = Color.from_rgb(*((0, 0, 0) if light else (255, 255, 255)))
    return Style(color=ink, bgcolor=ground)
