"""The app's own themes, with colours for each colour depth.

At 256 colours the values are entries of the terminal's palette, so that nothing is matched to
another colour; at 16 they are the terminal's own colours on its own background. Without colours
they tell terminal.Colourless what to reverse. The three fields of a floating-point code are
distinguished first by letter and second by colour; their hues (rose, amber, blue) stay distinct for
the common kinds of colour blindness.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import Theme

from qtui.screen.depth import Depth

# Variables that other themes do not have; see QtuiApp.get_theme_variable_defaults.
FIELDS_ON_DARK: Mapping[str, str] = {
    "field-sign": "#e58fb2",
    "field-exponent": "#dfb266",
    "field-mantissa": "#7cb7e8",
}
FIELDS_ON_LIGHT: Mapping[str, str] = {
    "field-sign": "#a8326e",
    "field-exponent": "#8a5a00",
    "field-mantissa": "#0a5c9c",
}


def theme_variable_defaults(theme: Theme) -> dict[str, str]:
    """The app's own variables, for a theme that does not set them (Textual's built-in ones)."""
    fields = FIELDS_ON_DARK if theme.dark else FIELDS_ON_LIGHT
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


def themes(depth: Depth) -> tuple[Theme, ...]:
    """The app's themes for a colour depth. Their names do not depend on it."""
    if depth is Depth.C16:
        return (_ansi("qtui-dark", dark=True), _ansi("qtui-light", dark=False), _ansi_contrast())
    if depth is Depth.NONE:
        return tuple(_ansi(f"qtui-{name}", dark=True) for name in ("dark", "light", "contrast"))
    if depth is Depth.C256:
        return (_dark_256(), _light_256(), _contrast())
    return (_dark(), _light(), _contrast())


def _scrollbar(thumb: str, active: str, track: str) -> dict[str, str]:
    """A scrollbar that stays in the background until it is used."""
    return {
        "scrollbar": thumb,
        "scrollbar-hover": active,
        "scrollbar-active": active,
        "scrollbar-background": track,
        "scrollbar-background-hover": track,
        "scrollbar-background-active": track,
        "scrollbar-corner-color": track,
    }


def _dark() -> Theme:
    return Theme(
        name="qtui-dark",
        primary="#7aa6da",
        secondary="#5d7ea6",
        accent="#dfb266",
        warning="#dfb266",
        error="#e37d84",
        success="#93c48b",
        foreground="#d5dae1",
        background="#12151a",
        surface="#191d23",
        panel="#22272f",
        variables={
            **FIELDS_ON_DARK,
            "quiet": "#8b95a3",
            "faint": "#4a5360",
            "cursor": "#2a3442",
            **_scrollbar("#343d49", "#7aa6da", "#191d23"),
            "footer-background": "#191d23",
            "block-cursor-background": "#2a3442",
            "block-cursor-foreground": "#eef2f7",
            "input-selection-background": "#7aa6da 35%",
        },
    )


def _light() -> Theme:
    return Theme(
        name="qtui-light",
        dark=False,
        primary="#20578f",
        secondary="#56789c",
        accent="#8a5a00",
        warning="#8a5a00",
        error="#a92b35",
        success="#2d6f2a",
        foreground="#22272d",
        background="#fbfaf7",
        surface="#f2f0eb",
        panel="#e6e3dc",
        variables={
            **FIELDS_ON_LIGHT,
            "quiet": "#5c646e",
            "faint": "#b7b7b0",
            "cursor": "#dbe5f0",
            **_scrollbar("#cfccc4", "#20578f", "#f2f0eb"),
            "footer-background": "#f2f0eb",
            "block-cursor-background": "#dbe5f0",
            "block-cursor-foreground": "#101418",
            "input-selection-background": "#20578f 25%",
        },
    )


def _contrast() -> Theme:
    return Theme(
        name="qtui-contrast",
        primary="#ffffff",
        secondary="#d0d0d0",
        accent="#ffd75f",
        warning="#ffd75f",
        error="#ff8787",
        success="#87ff87",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#1c1c1c",
        variables={
            "field-sign": "#ff87d7",
            "field-exponent": "#ffd75f",
            "field-mantissa": "#87d7ff",
            "quiet": "#d0d0d0",
            "faint": "#808080",
            "cursor": "#4e4e4e",
            **_scrollbar("#808080", "#ffffff", "#1c1c1c"),
            "footer-background": "#000000",
            "block-cursor-background": "#ffffff",
            "block-cursor-foreground": "#000000",
            "input-selection-background": "#5f5f5f",
        },
    )


def _dark_256() -> Theme:
    return Theme(
        name="qtui-dark",
        primary="#87afd7",
        secondary="#5f87af",
        accent="#d7af5f",
        warning="#d7af5f",
        error="#d78787",
        success="#87af87",
        foreground="#d0d0d0",
        background="#121212",
        surface="#1c1c1c",
        panel="#262626",
        variables={
            "field-sign": "#d787af",
            "field-exponent": "#d7af5f",
            "field-mantissa": "#87afd7",
            "quiet": "#949494",
            "faint": "#585858",
            "cursor": "#303030",
            **_scrollbar("#444444", "#87afd7", "#1c1c1c"),
            "footer-background": "#1c1c1c",
            "block-cursor-background": "#303030",
            "block-cursor-foreground": "#eeeeee",
            "input-selection-background": "#005f87",
        },
    )


def _light_256() -> Theme:
    return Theme(
        name="qtui-light",
        dark=False,
        primary="#005faf",
        secondary="#5f87af",
        accent="#875f00",
        warning="#875f00",
        error="#af0000",
        success="#005f00",
        foreground="#262626",
        background="#ffffff",
        surface="#eeeeee",
        panel="#dadada",
        variables={
            "field-sign": "#af005f",
            "field-exponent": "#875f00",
            "field-mantissa": "#005faf",
            "quiet": "#5f5f5f",
            "faint": "#a8a8a8",
            "cursor": "#d7d7ff",
            **_scrollbar("#c6c6c6", "#005faf", "#eeeeee"),
            "footer-background": "#eeeeee",
            "block-cursor-background": "#d7d7ff",
            "block-cursor-foreground": "#000000",
            "input-selection-background": "#afd7ff",
        },
    )


def _ansi(name: str, *, dark: bool) -> Theme:
    """The terminal's own 16 colours; background and foreground are the terminal's defaults, which
    are unknown. So no colour is used that a white or a black background would hide, and the light
    theme avoids the yellow of most terminals."""
    bright = "bright_" if dark else ""
    return Theme(
        name=name,
        ansi=True,
        dark=dark,
        primary=f"ansi_{bright}blue",
        secondary="ansi_cyan",
        accent="ansi_yellow" if dark else "ansi_magenta",
        warning="ansi_yellow" if dark else "ansi_magenta",
        error="ansi_red",
        success="ansi_green",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={
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
    )


def _ansi_contrast() -> Theme:
    theme = _ansi("qtui-contrast", dark=True)
    theme.primary = "ansi_bright_white"
    theme.foreground = "ansi_bright_white"
    theme.background = "ansi_black"
    theme.variables |= {
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
