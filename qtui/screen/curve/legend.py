"""The stacked parts of a curve: components in seven groups, each with a letter and a colour; the
colour is muted if the part is only predicted."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.style import Style

from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import palette_color
from qtui.screen.widgets.heatmap.ramps import Triplet
from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.timeline import GROUPS, Group, place_of


@dataclass(frozen=True)
class Part(Group):
    """A group and its colour in 24 bits, in the 256-colour palette, and in the terminal's 16
    colours."""

    triplet: Triplet
    number: int
    standard: int


#: Neighbours also differ in lightness, so that they can be told apart without colours.
_COLORS: Final[dict[str, Any]] = {
    "W": {"triplet": (85, 124, 174), "number": 67, "standard": 4},
    "R": {"triplet": (124, 196, 201), "number": 116, "standard": 6},
    "O": {"triplet": (140, 108, 166), "number": 133, "standard": 5},
    "G": {"triplet": (146, 186, 110), "number": 107, "standard": 2},
    "A": {"triplet": (222, 172, 76), "number": 179, "standard": 3},
    "L": {"triplet": (201, 91, 74), "number": 167, "standard": 1},
    "T": {"triplet": (186, 186, 186), "number": 250, "standard": 7},
}

PARTS: Final = tuple(Part(**vars(group), **_COLORS[group.letter]) for group in GROUPS)


def part_of(component: str) -> Part:
    """The part of a component; an unknown component counts as a temporary."""
    return PARTS[place_of(component)]


def color_of(part: Part, depth: Depth) -> Color | None:
    """The colour of a part; None if there are no colours."""
    if depth is Depth.TRUECOLOR:
        return Color.from_triplet(ColorTriplet(*part.triplet))
    if depth is Depth.C256:
        return palette_color(part.number)
    if depth is Depth.C16:
        return Color(f"color({part.standard})", ColorType.STANDARD, number=part.standard)
    return None


#: The share of a part's own colour in its muted colour; the rest is the background.
_SHARE: Final = 0.42
#: Muted colours of the 256-colour palette, in the order of PARTS, for a dark and for a light
#: background.
_DARK_256: Final = (24, 66, 60, 65, 94, 95, 240)
_LIGHT_256: Final = (153, 152, 183, 151, 223, 217, 252)
#: White or black, whichever stands out from the muted colour by 4.5:1 (WCAG 2.2, 1.4.3).
_ON_DARK_256: Final = (231, 16, 231, 16, 231, 231, 231)


def is_dark(ground: ColorTriplet) -> bool:
    """Whether a background is closer to black than to white."""
    return sum(ground) < 3 * 128


@cache
def _color(place: int, depth: Depth, ground: ColorTriplet | None) -> Color | None:
    """The colour of PARTS[place], muted on the background `ground` where that is given and there
    are enough colours; None if there are none."""
    if ground is None:
        return color_of(PARTS[place], depth)
    if depth is Depth.TRUECOLOR:
        own = PARTS[place].triplet
        mixed = (round(_SHARE * o + (1 - _SHARE) * g) for o, g in zip(own, ground, strict=True))
        return Color.from_triplet(ColorTriplet(*mixed))
    if depth is Depth.C256:
        return palette_color((_DARK_256 if is_dark(ground) else _LIGHT_256)[place])
    return color_of(PARTS[place], depth)


@cache
def ink(place: int, depth: Depth) -> Style:
    """The style of a letter in the colour of a part; of 16 colours none stands out in all
    palettes."""
    own = None if depth is Depth.C16 else color_of(PARTS[place], depth)
    return Style(color=own, bold=True)


@cache
def fill(lower: int, upper: int, depth: Depth, ground: ColorTriplet | None = None) -> Style:
    """The style of a cell in the colours of two parts: the lower as foreground, the upper as
    background; -1 is none. Muted on the background `ground`, if it is given."""
    return Style(
        color=None if lower < 0 else _color(lower, depth, ground),
        bgcolor=None if upper < 0 else _color(upper, depth, ground),
    )


@cache
def letter(place: int, depth: Depth, ground: ColorTriplet | None = None) -> Style:
    """The style of a letter on a cell that a part fills; on a muted one it is closer to the text
    colour than to the background, or of 256 colours white or black."""
    filled = _color(place, depth, ground)
    if ground is None:
        black = Color.from_triplet(ColorTriplet(0, 0, 0)) if depth is Depth.TRUECOLOR else None
        return Style(color=black or palette_color(16), bgcolor=filled, bold=True)
    dark = is_dark(ground)
    color = color_of(PARTS[place], depth)
    if depth is Depth.TRUECOLOR:
        text = 255 if dark else 0
        own = PARTS[place].triplet
        color = Color.from_triplet(ColorTriplet(*((part + text) // 2 for part in own)))
    elif depth is Depth.C256:
        color = palette_color(_ON_DARK_256[place] if dark else 236)
    return Style(color=color, bgcolor=filled)
