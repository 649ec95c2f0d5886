"""The parts that a curve is stacked of: components in seven groups, each a letter and a colour."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.style import Style

from qtui.report.memory.parts import GROUPS, PLACES, Group, place_of
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import palette_color
from qtui.screen.widgets.heatmap.ramps import Triplet
from qtui_core.dataclass import dataclass

__all__ = ["PARTS", "PLACES", "Part", "color_of", "fill", "ink", "letter", "part_of"]


@dataclass(frozen=True)
class Part(Group):
    """A group and its colour in 24 bits, of 256, and of the terminal's 16."""

    triplet: Triplet
    number: int
    standard: int


#: Neighbours differ in lightness too, so that they part without colours.
_COLORS: Final[dict[str, Any]] = {
    "W": {"triplet": (76, 114, 163), "number": 67, "standard": 4},
    "R": {"triplet": (124, 196, 201), "number": 116, "standard": 6},
    "O": {"triplet": (132, 100, 158), "number": 97, "standard": 5},
    "G": {"triplet": (146, 186, 110), "number": 107, "standard": 2},
    "A": {"triplet": (222, 172, 76), "number": 179, "standard": 3},
    "L": {"triplet": (201, 91, 74), "number": 167, "standard": 1},
    "T": {"triplet": (186, 186, 186), "number": 250, "standard": 7},
}

PARTS: Final = tuple(Part(**vars(group), **_COLORS[group.letter]) for group in GROUPS)


def part_of(component: str) -> Part:
    """The part that a component is in; what is no component is a temporary."""
    return PARTS[place_of(component)]


def color_of(part: Part, depth: Depth) -> Color | None:
    """None where there are no colours."""
    if depth is Depth.TRUECOLOR:
        return Color.from_triplet(ColorTriplet(*part.triplet))
    if depth is Depth.C256:
        return palette_color(part.number)
    if depth is Depth.C16:
        return Color(f"color({part.standard})", ColorType.STANDARD, number=part.standard)
    return None


@cache
def ink(place: int, depth: Depth) -> Style:
    """A letter in the colour of a part."""
    return Style(color=color_of(PARTS[place], depth), bold=True)


@cache
def fill(lower: int, upper: int, depth: Depth) -> Style:
    """A cell in the colours of two parts: the lower as ink, the upper as ground; -1 is none."""
    return Style(
        color=None if lower < 0 else color_of(PARTS[lower], depth),
        bgcolor=None if upper < 0 else color_of(PARTS[upper], depth),
    )


@cache
def letter(place: int, depth: Depth) -> Style:
    """A letter on a cell that a part fills."""
    black = Color.from_triplet(ColorTriplet(0, 0, 0)) if depth is Depth.TRUECOLOR else None
    return Style(color=black or palette_color(16), bgcolor=color_of(PARTS[place], depth), bold=True)
