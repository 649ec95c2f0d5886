"""Colour ramps as data: stops for 24-bit terminals, palette numbers for 256-colour ones."""

from __future__ import annotations

Triplet = tuple[int, int, int]

# cividis (Nuñez, Anderton, Renslow 2018, public domain), sampled at eighths.
CIVIDIS_STOPS: tuple[Triplet, ...] = (
    (0, 32, 77),
    (21, 55, 110),
    (66, 78, 108),
    (95, 102, 113),
    (124, 123, 120),
    (155, 145, 119),
    (188, 170, 107),
    (222, 198, 90),
    (255, 234, 70),
)

# A similar path through the 256-colour palette: navy, greys, gold. The palette has no dark slate,
# and its blues, teals and pinks of these lightnesses are far from the path: next to each other, as
# in a picture of noise, they would be more conspicuous than the lightness, which shows how large a
# value is.
CIVIDIS_256: tuple[int, ...] = (17, 235, 237, 239, 241, 243, 245, 247, 144, 179, 221, 227)

# Diverging, with equal brightness on both sides of a neutral middle.
BLUE_ORANGE_STOPS: tuple[Triplet, ...] = (
    (128, 196, 255),
    (52, 140, 224),
    (30, 84, 142),
    (38, 40, 46),
    (140, 74, 22),
    (222, 122, 32),
    (255, 186, 110),
)
BLUE_ORANGE_256: tuple[int, ...] = (117, 75, 32, 25, 24, 236, 94, 130, 166, 208, 215)

GREYS_256: tuple[int, ...] = tuple(range(232, 256))

_STEPS = (0, 95, 135, 175, 215, 255)
_SYSTEM: tuple[Triplet, ...] = (
    (0, 0, 0),
    (128, 0, 0),
    (0, 128, 0),
    (128, 128, 0),
    (0, 0, 128),
    (128, 0, 128),
    (0, 128, 128),
    (192, 192, 192),
    (128, 128, 128),
    (255, 0, 0),
    (0, 255, 0),
    (255, 255, 0),
    (0, 0, 255),
    (255, 0, 255),
    (0, 255, 255),
    (255, 255, 255),
)

# xterm's palette: 16 system colours, a 6x6x6 cube, 24 greys.
EIGHT_BIT_CUBE: tuple[Triplet, ...] = (
    *_SYSTEM,
    *((r, g, b) for r in _STEPS for g in _STEPS for b in _STEPS),
    *((8 + 10 * i, 8 + 10 * i, 8 + 10 * i) for i in range(24)),
)


def interpolate(stops: tuple[Triplet, ...], fraction: float) -> Triplet:
    """The colour at `fraction` (0..1) of the way through evenly spaced stops."""
    position = max(0.0, min(1.0, fraction)) * (len(stops) - 1)
    index = min(int(position), len(stops) - 2)
    rest = position - index
    low, high = stops[index], stops[index + 1]
    red, green, blue = (round(a + (b - a) * rest) for a, b in zip(low, high, strict=True))
    return red, green, blue


def brightness(triplet: Triplet) -> float:
    """Relative luminance 0..1 (Rec. 709 weights on linear light)."""

    def linear(channel: int) -> float:
        value = channel / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = triplet
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
