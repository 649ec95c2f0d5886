"""The parts that a curve is stacked of: components in seven groups, each a letter and a colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.style import Style

from qtui.tui.depth import Depth
from qtui.tui.widgets.drawing import palette_color
from qtui.tui.widgets.ramps import Triplet
from qtui_core.memory.record import Component


@dataclass(frozen=True)
class Part:
    """Components that are drawn as one.

    Attributes:
        letter: stands for it, because colour alone would not be read by everyone.
        name: in words; `short` where there is little room.
        components: in it.
        triplet, number, standard: its colour in 24 bits, of 256, and of the terminal's 16.
    """

    letter: str
    name: str
    short: str
    components: frozenset[Component]
    triplet: Triplet
    number: int
    standard: int


def _part(
    letter: str,
    name: str,
    short: str,
    triplet: Triplet,
    number: int,
    standard: int,
    *components: Component,
) -> Part:
    return Part(letter, name, short, frozenset(components), triplet, number, standard)


#: From the ground up: what stays lies below what comes and goes. Neighbours differ in lightness
#: too, so that they part without colours.
PARTS: Final = (
    _part("W", "weights", "weights", (76, 114, 163), 67, 4,
          Component.WEIGHTS, Component.QUANTIZATION, Component.BUFFERS),
    _part("R", "adapters", "adapters", (124, 196, 201), 116, 6, Component.ADAPTERS),
    _part("O", "optimizer states", "optimizer", (132, 100, 158), 97, 5, Component.OPTIMIZER),
    _part("G", "gradients", "grads", (146, 186, 110), 107, 2, Component.GRADIENTS),
    _part("A", "activations", "acts", (222, 172, 76), 179, 3,
          Component.ACTIVATIONS, Component.CACHE, Component.INPUTS),
    _part("L", "loss", "loss", (201, 91, 74), 167, 1, Component.LOSS),
    _part("T", "temporaries", "temps", (186, 186, 186), 250, 7,
          Component.TEMPORARIES, Component.WORKSPACES),
)  # fmt: skip

#: Name of a component -> place in PARTS.
PLACES: Final = {
    component.value: place for place, part in enumerate(PARTS) for component in part.components
}


def part_of(component: str) -> Part:
    """The part that a component is in; what is no component is a temporary."""
    return PARTS[PLACES.get(component, len(PARTS) - 1)]


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
