"""The colours of parts, held back: what was predicted lies behind what is measured."""

from __future__ import annotations

from functools import cache
from typing import Final

from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.style import Style

from qtui.screen.curve.parts import PARTS, color_of
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import palette_color

#: Share of a part's own colour; the rest is the ground.
_SHARE: Final = 0.42
#: The same of the 256, in the order of PARTS, on a dark and on a light ground.
_DARK_256: Final = (24, 66, 60, 65, 94, 95, 240)
_LIGHT_256: Final = (153, 152, 183, 151, 223, 217, 252)


def is_dark(ground: ColorTriplet) -> bool:
    """Whether a ground is nearer to black than to white."""
    return sum(ground) < 3 * 128


@cache
def muted(place: int, depth: Depth, ground: ColorTriplet) -> Color | None:
    """The colour of PARTS[place] on a ground; None where there are too few colours."""
    if depth is Depth.TRUECOLOR:
        own = PARTS[place].triplet
        mixed = (round(_SHARE * o + (1 - _SHARE) * g) for o, g in zip(own, ground, strict=True))
        return Color.from_triplet(ColorTriplet(*mixed))
    if depth is Depth.C256:
        return palette_color((_DARK_256 if is_dark(ground) else _LIGHT_256)[place])
    return color_of(PARTS[place], depth)


@cache
def muted_fill(lower: int, upper: int, depth: Depth, ground: ColorTriplet) -> Style:
    """A cell in the held-back colours of two parts, the lower as ink; -1 is none."""
    return Style(
        color=None if lower < 0 else muted(lower, depth, ground),
        bgcolor=None if upper < 0 else muted(upper, depth, ground),
    )


@cache
def muted_letter(place: int, depth: Depth, ground: ColorTriplet) -> Style:
    """A letter on a cell that a part fills: nearer to the text than to the ground."""
    dark = is_dark(ground)
    color = color_of(PARTS[place], depth)
    if depth is Depth.TRUECOLOR:
        text = 255 if dark else 0
        own = PARTS[place].triplet
        color = Color.from_triplet(ColorTriplet(*((part + text) // 2 for part in own)))
    elif depth is Depth.C256:
        color = palette_color(252 if dark else 236)
    return Style(color=color, bgcolor=muted(place, depth, ground))
