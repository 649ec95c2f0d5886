"""The first lines of the app as escapes: the header and the tabs in the cells and colours in which
the app draws them a moment later, on the background of the panel."""

from __future__ import annotations

import os
from typing import Any, Final

from qtui.screen.depth import NOTHING_SAID, Depth, TerminalSays, depth_of
from qtui.tui.config import load_config
from qtui.tui.panels import tabs
from qtui.tui.state import LastSession
from qtui.tui.theme import named_theme, theme_parts

#: The least columns and lines in which the app shows panels.
SMALLEST: Final = (60, 16)
#: Numbers of the terminal's own colours.
_ANSI: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def first_lines(
    model: str,
    color: str,
    ascii: bool,
    width: int,
    height: int,
    says: TerminalSays = NOTHING_SAID,
) -> str:
    """What to write; "" for a theme that is not ours, of which only Textual knows the colours.

    Raises UsageError for a wrong configuration or color.
    """
    config = load_config()
    last = LastSession.of(config)
    model, first_panel = last.model(model), last.panel(config)
    depth, _ = depth_of(color if color != "auto" else config.color, os.environ, says)
    named = named_theme(last.theme(config), os.environ, says)
    theme = next((parts for parts in theme_parts(depth) if parts["name"] == named), None)
    if theme is None:
        return ""
    pens = _Pens(theme, depth)
    ground = pens.of("foreground", "background")
    drawn = [ground, "\x1b[2J"]
    if width >= SMALLEST[0] and height >= SMALLEST[1]:
        bar = pens.of("foreground", "surface")
        dot = "." if ascii or config.ascii else "·"
        drawn += [f"\x1b[H{bar}\x1b[K ", pens.of("primary", "surface", "1"), "qtui"]
        drawn += [pens.of("quiet", "surface"), f" {dot} ", bar]
        if model.isascii() and model.isprintable() and len(model) <= width - 9:
            drawn.append(model)
        drawn.append("\x1b[2;1H\x1b[K")
        for _, entry, text in tabs(width, first_panel):
            if entry.id == first_panel:
                plain = depth in (Depth.C16, Depth.NONE)
                drawn.append(pens.of("foreground", "background", "1;7" if plain else "1"))
                drawn.append(text)
            else:
                drawn += [pens.of("primary", "surface"), text[:2], bar, text[2:]]
        drawn.append(f"\x1b[{height};1H{pens.of('foreground', 'footer-background')}\x1b[K")
    return "".join(drawn) + "\x1b[m"


class _Pens:
    """The escapes of a theme's colours, by the names that it gives them."""

    def __init__(self, theme: dict[str, Any], depth: Depth) -> None:
        self._colors = {**theme, **theme["variables"]}
        self._depth = depth

    def of(self, fore: str, back: str, attributes: str = "") -> str:
        parts = [attributes, self._color(fore, 30), self._color(back, 40)]
        return f"\x1b[0;{';'.join(part for part in parts if part)}m".replace(";m", "m")

    def _color(self, name: str, base: int) -> str:
        color = self._colors[name]
        if self._depth is Depth.NONE or color == "ansi_default":
            return ""
        if color.startswith("ansi_"):
            bright, _, plain = color.removeprefix("ansi_").rpartition("bright_")
            number = _ANSI.index(plain or bright)
            return str(base + number + (60 if "bright_" in color else 0))
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        if self._depth is Depth.C256:
            return f"{base + 8};5;{in_palette(red, green, blue)}"
        return f"{base + 8};2;{red};{green};{blue}"


def in_palette(red: int, green: int, blue: int) -> int:
    """The entry of the 256 colours that rich sends for a colour (rich.color.Color.downgrade)."""
    low, high = min(red, green, blue) / 255, max(red, green, blue) / 255
    light = (low + high) / 2
    spread = high - low
    saturation = spread and spread / (high + low if light <= 0.5 else 2.0 - high - low)
    if saturation < 0.15:
        grey = round(light * 25.0)
        return 16 if grey == 0 else 231 if grey == 25 else 231 + grey
    six = [c / 95 if c < 95 else 1 + (c - 95) / 40 for c in (red, green, blue)]
    return 16 + 36 * round(six[0]) + 6 * round(six[1]) + round(six[2])
