"""How many colours this terminal shows and whether its background is light: what follows from its
variables and from what it answers (`qtui.tui.first.asking` asks it). Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError


class Depth(StrEnum):
    """How many colours the terminal can show."""

    TRUECOLOR = "truecolor"
    C256 = "256"
    C16 = "16"
    NONE = "none"


COLOR_CHOICES = ("auto", *(depth.value for depth in Depth))

_TRUECOLOR_TERMS: Final = (
    "kitty", "ghostty", "alacritty", "foot", "wezterm", "-direct", "contour",
)  # fmt: skip
#: What a user who sets such a TERM asks for, whatever the terminal could do.
_FEW_COLOR_TERMS: Final = ("-16color", "-88color", "-mono")
#: The entries of the 16 colours that vim takes for a light background: white and the bright ones
#: but for the bright black (term.c, of COLORFGBG).
_LIGHT_ENTRIES: Final = ("7", "9", "10", "11", "12", "13", "14", "15")


@dataclass(frozen=True)
class TerminalSays:
    """What the terminal says of itself besides the variables. None: nothing.

    truecolor: whether it gave back a 24-bit colour that it was told, or names RGB or Tc as its own.
    background: red, green and blue of its background in 0..1.
    light: whether it reports a light colour scheme.
    tmux: the features of the terminal around, as tmux names them ("256,RGB,title").
    colors: those of its terminfo, 0 for a terminal without; `direct`: terminfo has RGB or Tc.
    """

    truecolor: bool | None = None
    background: tuple[float, float, float] | None = None
    light: bool | None = None
    tmux: str | None = None
    colors: int | None = None
    direct: bool = False


NOTHING_SAID: Final = TerminalSays()


def names_its_depth(env: Mapping[str, str]) -> bool:
    """Whether variables alone say how many colours there are, so that the terminal need not be
    asked. What COLORTERM says in a multiplexer is about the terminal in which that was started."""
    term = env.get("TERM", "")
    if env.get("NO_COLOR") or term.startswith(("linux", "screen")) or _multiplexed(env):
        return True
    return _direct_variable(env) or any(
        name in term for name in _TRUECOLOR_TERMS + _FEW_COLOR_TERMS
    )


def depth_of(
    color: str, env: Mapping[str, str], says: TerminalSays = NOTHING_SAID
) -> tuple[Depth, str]:
    """The depth for a `--color` option and the reason, a clause. Raises UsageError for an unknown
    option.

    A non-empty NO_COLOR wins (https://no-color.org). In tmux its own list of what the terminal
    around can do decides, as COLORTERM is that of whatever terminal the server was started from
    (tmux 3.3a sends 24 bits to no terminal without RGB, it takes the nearest of 256). Elsewhere
    COLORTERM does, which plain ssh does not forward; then what the terminal answers, as in neovim
    (runtime/lua/vim/_defaults.lua); then terminfo, as in notcurses; then TERM.
    """
    if color != "auto":
        try:
            return Depth(color), "the setting says so"
        except ValueError:
            choices = ", ".join(COLOR_CHOICES)
            raise UsageError(f"Unknown colour depth {color!r}; it is one of {choices}.") from None
    term = env.get("TERM", "")
    if env.get("NO_COLOR"):
        return Depth.NONE, "NO_COLOR is set"
    if term in ("", "dumb", "unknown"):
        return Depth.NONE, f"TERM is {term!r}"
    if any(name in term for name in _FEW_COLOR_TERMS):
        mono = term.endswith("-mono")
        return (Depth.NONE if mono else Depth.C16), f"TERM is {term}"
    if env.get("TMUX") and says.tmux:
        if "RGB" in says.tmux.split(","):
            return Depth.TRUECOLOR, "tmux says that the terminal around it has RGB"
        return _of_terminfo(term, says, "tmux names no RGB for the terminal around it")
    if _direct_variable(env) and not env.get("STY"):
        return Depth.TRUECOLOR, f"COLORTERM is {env['COLORTERM']}"
    if says.truecolor:
        return Depth.TRUECOLOR, "the terminal answered that it shows 24-bit colours"
    if any(name in term for name in _TRUECOLOR_TERMS):
        return Depth.TRUECOLOR, f"TERM is {term}"
    if says.direct:
        return Depth.TRUECOLOR, f"terminfo has RGB for {term}"
    return _of_terminfo(term, says, "")


def _of_terminfo(term: str, says: TerminalSays, why: str) -> tuple[Depth, str]:
    if "256color" in term or (says.colors or 0) >= 256:
        depth = Depth.C256
    else:
        depth = Depth.NONE if says.colors == 0 else Depth.C16
    if "256color" in term or says.colors is None:
        found = f"TERM is {term}"
    else:
        found = f"terminfo has {says.colors} colours for {term}"
    return depth, f"{found}, and {why}" if why else found


def light_of(env: Mapping[str, str], says: TerminalSays = NOTHING_SAID) -> tuple[bool, str]:
    """Whether the terminal's background is light, and the reason, a clause.

    A colour is light from half of the brightness of white on (ITU-R BT.601 weights), as in neovim.
    COLORFGBG ("15;0", rxvt also "15;default;0") names the entries of the 16 colours.
    """
    if says.light is not None:
        return says.light, f"the terminal reports a {'light' if says.light else 'dark'} scheme"
    if says.background is not None:
        red, green, blue = says.background
        shown = "".join(f"{round(255 * part):02x}" for part in says.background)
        light = 0.299 * red + 0.587 * green + 0.114 * blue >= 0.5
        return light, f"the terminal answered #{shown}"
    entry = env.get("COLORFGBG", "").rpartition(";")[2]
    if entry.isdigit():
        return entry in _LIGHT_ENTRIES, f"COLORFGBG is {env['COLORFGBG']}"
    return False, "the terminal says nothing of it"


def _direct_variable(env: Mapping[str, str]) -> bool:
    return env.get("COLORTERM", "").lower() in ("truecolor", "24bit")


def _multiplexed(env: Mapping[str, str]) -> bool:
    return bool(env.get("TMUX") or env.get("STY"))
