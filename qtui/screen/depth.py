"""How many colours this terminal shows. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum

from qtui_core.errors import UsageError


class Depth(StrEnum):
    """How many colours the terminal can show."""

    TRUECOLOR = "truecolor"
    C256 = "256"
    C16 = "16"
    NONE = "none"


COLOR_CHOICES = ("auto", *(depth.value for depth in Depth))

_TRUECOLOR_TERMS = ("kitty", "ghostty", "alacritty", "foot", "wezterm", "-direct", "contour")


def detect_depth(environment: Mapping[str, str] | None = None) -> Depth:
    """The depth for `--color auto`.

    A non-empty NO_COLOR wins (https://no-color.org). COLORTERM is the only sign of 24-bit colour
    that most terminals give, and plain ssh does not forward it; without it, 256 is assumed.
    """
    env = os.environ if environment is None else environment
    term = env.get("TERM", "")
    if env.get("NO_COLOR"):
        return Depth.NONE
    if env.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return Depth.TRUECOLOR
    if any(name in term for name in _TRUECOLOR_TERMS):
        return Depth.TRUECOLOR
    if "256color" in term:
        return Depth.C256
    if term in ("", "dumb", "unknown"):
        return Depth.NONE
    return Depth.C16


def resolve_depth(color: str, environment: Mapping[str, str] | None = None) -> Depth:
    """The depth for a `--color` option. Raises UsageError for an unknown one."""
    if color == "auto":
        return detect_depth(environment)
    try:
        return Depth(color)
    except ValueError:
        choices = ", ".join(COLOR_CHOICES)
        raise UsageError(f"Unknown colour depth {color!r}; it is one of {choices}.") from None
