"""The app's own themes, with colours for each colour depth.

At 256 colours the values are entries of the terminal's palette, of which rich sends many greys one
entry darker; at 16 they are the terminal's own colours on its own background. Without colours they
tell terminal.Colourless what to reverse. The three fields of a floating-point code differ first by
letter and second by colour; their hues (rose, amber, blue) stay distinct for the common kinds of
colour blindness.
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
    "secondary": ("#678ab3", "#46688c", "#d0d0d0", "#5f87af", "#005f87"),
    "accent": ("#dfb266", "#8a5a00", "#ffd75f", "#d7af5f", "#5f5f00"),
    "error": ("#e37d84", "#a92b35", "#ff8787", "#d78787", "#af0000"),
    "success": ("#93c48b", "#2d6f2a", "#87ff87", "#87af87", "#005f00"),
    "foreground": ("#d5dae1", "#22272d", "#ffffff", "#d0d0d0", "#262626"),
    "background": ("#12151a", "#fbfaf7", "#000000", "#121212", "#ffffff"),
    "surface": ("#191d23", "#f2f0eb", "#000000", "#1c1c1c", "#eeeeee"),
    "panel": ("#22272f", "#e6e3dc", "#1c1c1c", "#262626", "#e4e4e4"),
    "field-sign": ("#e58fb2", "#a8326e", "#ff87d7", "#d787af", "#af005f"),
    "field-exponent": ("#dfb266", "#8a5a00", "#ffd75f", "#d7af5f", "#5f5f00"),
    "field-mantissa": ("#7cb7e8", "#0a5c9c", "#87d7ff", "#87afd7", "#005faf"),
    "quiet": ("#97a1af", "#5c646e", "#d0d0d0", "#a8a8a8", "#5f5f5f"),
    "faint": ("#677281", "#82827b", "#808080", "#767676", "#808080"),
    "cursor": ("#2a3442", "#dbe5f0", "#3a3a3a", "#303030", "#d7d7ff"),
    "scrollbar": ("#677281", "#82827b", "#808080", "#767676", "#808080"),
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
    """The terminal's own 16 colours, of which only the names are known; background and foreground
    are its defaults. Used are those that stand out from a dark or a light background with all
    common palettes (tests/tui/test_shell_colours.py has these): on dark ones bright cyan and the
    whites, on light ones red, magenta and black. Yellow, green and the blues fail with one or
    another, and what Solarized calls bright black is its background."""
    hue, other = ("ansi_bright_cyan", "ansi_bright_white") if dark else ("ansi_magenta", "ansi_red")
    high, low = ("ansi_bright_white", "ansi_black")[:: 1 if dark else -1]
    return {
        "name": name,
        "ansi": True,
        "dark": dark,
        **dict.fromkeys(("primary", "secondary"), hue),
        **dict.fromkeys(("accent", "warning", "error"), other),
        **dict.fromkeys(
            ("success", "foreground", "background", "surface", "panel", "boost"), "ansi_default"
        ),
        "variables": {
            **dict.fromkeys(
                (
                    "ansi-background", "ansi-foreground", "field-mantissa", "quiet", "faint",
                    "cursor", "footer-background", "block-hover-background", "border-blurred",
                    "scrollbar-background", "scrollbar-background-hover",
                    "scrollbar-background-active",
                ),
                "ansi_default",
            ),
            **dict.fromkeys(("scrollbar", "scrollbar-hover", "scrollbar-active"), hue),
            "field-sign": other,
            "field-exponent": hue,
            "block-cursor-background": high,
            "block-cursor-foreground": low,
            "input-cursor-background": high,
            "input-cursor-foreground": low,
            "input-selection-background": "ansi_white" if dark else low,
            "input-selection-foreground": low if dark else "ansi_white",
            "screen-selection-background": "ansi_white" if dark else low,
            "screen-selection-foreground": low if dark else "ansi_white",
        },
    }  # fmt: skip


def _ansi_contrast() -> dict[str, Any]:
    """White on black, whatever the defaults of the terminal are."""
    theme = _ansi("qtui-contrast", dark=True)
    # For a theme with the terminal's colours, Textual reads these two from the variables only.
    variables = {**theme["variables"], "surface": "ansi_default", "panel": "ansi_default"}
    grounds = ("background", "surface", "panel", "boost", "cursor")
    for parts in (theme, variables):
        for part, color in parts.items():
            if color == "ansi_default":
                back = any(ground in part for ground in grounds)
                parts[part] = "ansi_black" if back else "ansi_bright_white"
    return theme | {"primary": "ansi_bright_white", "variables": variables}
