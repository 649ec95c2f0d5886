"""The app's own themes, with colours for each colour depth.

At 256 colours the values are entries of the terminal's palette, so that nothing is matched to
another colour; at 16 they are the terminal's own colours on its own background. Without colours
they tell terminal.Colourless what to reverse. The three fields of a floating-point code are
distinguished first by letter and second by colour; their hues (rose, amber, blue) stay distinct for
the common kinds of colour blindness.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from qtui.screen.depth import Depth, TerminalSays, light_of
from qtui_core.errors import UsageError

if TYPE_CHECKING:
    from textual.app import App
    from textual.theme import Theme

#: Each part's colour in the dark theme, the light one and that of high contrast, then in the dark
#: and the light one of 256 colours.
_PARTS: Final[Mapping[str, tuple[str, str, str, str, str]]] = {
    "primary": ("#7aa6da", "#20578f", "#ffffff", "#87afd7", "#005faf"),
    "secondary": ("#5d7ea6", "#56789c", "#d0d0d0", "#5f87af", "#5f87af"),
    "accent": ("#dfb266", "#8a5a00", "#ffd75f", "#d7af5f", "#875f00"),
    "error": ("#e37d84", "#a92b35", "#ff8787", "#d78787", "#af0000"),
    "success": ("#93c48b", "#2d6f2a", "#87ff87", "#87af87", "#005f00"),
    "foreground": ("#d5dae1", "#22272d", "#ffffff", "#d0d0d0", "#262626"),
    "background": ("#12151a", "#fbfaf7", "#000000", "#121212", "#ffffff"),
    "surface": ("#191d23", "#f2f0eb", "#000000", "#1c1c1c", "#eeeeee"),
    "panel": ("#22272f", "#e6e3dc", "#1c1c1c", "#262626", "#dadada"),
    "field-sign": ("#e58fb2", "#a8326e", "#ff87d7", "#d787af", "#af005f"),
    "field-exponent": ("#dfb266", "#8a5a00", "#ffd75f", "#d7af5f", "#875f00"),
    "field-mantissa": ("#7cb7e8", "#0a5c9c", "#87d7ff", "#87afd7", "#005faf"),
    "quiet": ("#8b95a3", "#5c646e", "#d0d0d0", "#949494", "#5f5f5f"),
    "faint": ("#4a5360", "#b7b7b0", "#808080", "#585858", "#a8a8a8"),
    "cursor": ("#2a3442", "#dbe5f0", "#4e4e4e", "#303030", "#d7d7ff"),
    "scrollbar": ("#343d49", "#cfccc4", "#808080", "#444444", "#c6c6c6"),
    "scrollbar-background": ("#191d23", "#f2f0eb", "#1c1c1c", "#1c1c1c", "#eeeeee"),
    "block-cursor-background": ("#2a3442", "#dbe5f0", "#ffffff", "#303030", "#d7d7ff"),
    "block-cursor-foreground": ("#eef2f7", "#101418", "#000000", "#eeeeee", "#000000"),
    "input-selection-background": (
        "#7aa6da 35%", "#20578f 25%", "#5f5f5f", "#005f87", "#afd7ff",
    ),
}  # fmt: skip
#: The setting that takes qtui-dark or qtui-light, as the terminal's background is.
AUTO: Final = "auto"
_FIELDS: Final = ("field-sign", "field-exponent", "field-mantissa")
_OF_A_THEME: Final = (
    "primary", "secondary", "accent", "error", "success", "foreground", "background", "surface",
    "panel",
)  # fmt: skip


def theme_variable_defaults(theme: Theme) -> dict[str, str]:
    """The app's own variables, for a theme that does not set them (Textual's built-in ones)."""
    fields = {part: _PARTS[part][0 if theme.dark else 1] for part in _FIELDS}
    if theme.ansi:
        return {
            **fields,
            "quiet": "ansi_default",
            "faint": "ansi_bright_black",
            "cursor": "ansi_blue",
        }
    quiet, faint, cursor = (
        ("#9aa3ad", "#59616b", "#39424e") if theme.dark else ("#59616b", "#adadad", "#d3dce6")
    )
    return {**fields, "quiet": quiet, "faint": faint, "cursor": cursor}


def named_theme(setting: str, env: Mapping[str, str], says: TerminalSays) -> str:
    """The theme of a setting: what it names, or for "auto" the one for the background."""
    return setting if setting != AUTO else f"qtui-{'light' if light_of(env, says)[0] else 'dark'}"


def checked_theme(name: str, known: Collection[str]) -> str:
    """The name of a theme. Raises UsageError if it is not `known`."""
    if name not in known:
        names = ", ".join((AUTO, *sorted(known)))
        raise UsageError(f"Unknown theme {name!r}; known are {names}.")
    return name


class ThemeChoice:
    """Which theme an app wears. Raises UsageError for an unknown one.

    follows: whether it is always the one for the terminal's background.
    """

    def __init__(self, app: App[Any], depth: Depth, says: TerminalSays) -> None:
        self._app = app
        self._depth = depth
        self._says = says
        self.follows = False

    def choose(self, name: str) -> None:
        """The theme of a setting, from now on."""
        self.follows = name == AUTO
        if self.follows:
            getattr(self._app._driver, "follow_background", bool)()
        named = named_theme(name, os.environ, self._says)
        self._app.theme = checked_theme(named, self._app.available_themes)

    def offers(self, name: str) -> bool:
        """Whether a theme keeps its colours at this depth; other themes than ours do only at 24
        bits."""
        theme = self._app.available_themes.get(name)
        if theme is None or name.startswith("qtui"):
            return theme is not None
        return self._depth is Depth.TRUECOLOR and not theme.ansi

    def hear(self, says: TerminalSays) -> None:
        """The terminal answered late, or its background changed. Its number of colours stays that
        of the start."""
        self._says = says
        if self.follows:
            self._app.theme = named_theme(AUTO, os.environ, says)


def themes(depth: Depth) -> tuple[Theme, ...]:
    """The app's themes for a colour depth. Their names do not depend on it."""
    from textual.theme import Theme

    return tuple(Theme(**parts) for parts in theme_parts(depth))


def theme_parts(depth: Depth) -> tuple[dict[str, Any], ...]:
    """What the themes are made of, each the arguments of a `Theme`. Textual is not needed for
    it."""
    if depth is Depth.C16:
        return (_ansi("qtui-dark", dark=True), _ansi("qtui-light", dark=False), _ansi_contrast())
    if depth is Depth.NONE:
        return tuple(_ansi(f"qtui-{name}", dark=True) for name in ("dark", "light", "contrast"))
    dark, light = (3, 4) if depth is Depth.C256 else (0, 1)
    return (_theme("dark", dark), _theme("light", light, dark=False), _theme("contrast", 2))


def _theme(name: str, column: int, *, dark: bool = True) -> dict[str, Any]:
    """The theme of a column of the table. Its scrollbars stay in the background until they are
    used."""
    parts = {part: colours[column] for part, colours in _PARTS.items()}
    own: dict[str, Any] = {part: parts.pop(part) for part in _OF_A_THEME}
    parts |= dict.fromkeys(("scrollbar-hover", "scrollbar-active"), own["primary"])
    parts |= dict.fromkeys(
        ("scrollbar-background-hover", "scrollbar-background-active", "scrollbar-corner-color"),
        parts["scrollbar-background"],
    )
    parts["footer-background"] = own["surface"]
    return {
        "name": f"qtui-{name}",
        **own,
        "warning": own["accent"],
        "dark": dark,
        "variables": parts,
    }


def _ansi(name: str, *, dark: bool) -> dict[str, Any]:
    """The terminal's own 16 colours; background and foreground are the terminal's defaults, which
    are unknown. So no colour is used that a white or a black background would hide, and the light
    theme avoids the yellow of most terminals."""
    bright = "bright_" if dark else ""
    return {
        "name": name,
        "ansi": True,
        "dark": dark,
        "primary": f"ansi_{bright}blue",
        "secondary": "ansi_cyan",
        "accent": "ansi_yellow" if dark else "ansi_magenta",
        "warning": "ansi_yellow" if dark else "ansi_magenta",
        "error": "ansi_red",
        "success": "ansi_green",
        "foreground": "ansi_default",
        "background": "ansi_default",
        "surface": "ansi_default",
        "panel": "ansi_default",
        "boost": "ansi_default",
        "variables": {
            "ansi-background": "ansi_default",
            "ansi-foreground": "ansi_default",
            "field-sign": f"ansi_{bright}magenta",
            "field-exponent": "ansi_yellow" if dark else "ansi_red",
            "field-mantissa": "ansi_cyan" if dark else "ansi_blue",
            "quiet": "ansi_default",
            "faint": "ansi_bright_black",
            "cursor": "ansi_default",
            "footer-background": "ansi_default",
            "block-cursor-background": "ansi_blue" if dark else "ansi_cyan",
            "block-cursor-foreground": "ansi_bright_white" if dark else "ansi_black",
            "input-cursor-background": "ansi_bright_white" if dark else "ansi_black",
            "input-cursor-foreground": "ansi_black" if dark else "ansi_bright_white",
            "input-selection-background": "ansi_bright_blue",
            "input-selection-foreground": "ansi_black",
            "screen-selection-background": "ansi_bright_blue",
            "screen-selection-foreground": "ansi_black",
            "block-hover-background": "ansi_default",
            "border-blurred": "ansi_bright_black",
        },
    }


def _ansi_contrast() -> dict[str, Any]:
    theme = _ansi("qtui-contrast", dark=True)
    theme |= dict.fromkeys(("primary", "foreground"), "ansi_bright_white")
    theme["background"] = "ansi_black"
    theme["variables"] |= {
        # For a theme with the terminal's colours, Textual reads these from the variables only.
        "surface": "ansi_black",
        "panel": "ansi_black",
        "faint": "ansi_white",
        "quiet": "ansi_bright_white",
        "cursor": "ansi_black",
        "footer-background": "ansi_black",
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_bright_white",
    }
    return theme
