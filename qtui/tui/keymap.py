"""The shell's keys, and the ids with which a configuration rebinds any key of the app.

Panels and widgets declare their own bindings beside the actions; each has an id
("formats.next_value") and a tooltip. This module collects the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from qtui.tui.panels import PANELS
from qtui_core.errors import UsageError

PANEL_BINDINGS: tuple[Binding, ...] = tuple(
    Binding(
        str(entry.number),
        f"show_panel({entry.id!r})",
        entry.title,
        show=False,
        id=f"app.panel_{entry.id}",
        tooltip=f"Show the {entry.title} panel",
    )
    for entry in PANELS
)

APP_BINDINGS: list[BindingType] = [
    Binding("y", "copy", "Copy", id="app.copy", tooltip="Copy what the panel shows as text"),
    Binding(
        "Y",
        "copy_command",
        "Command",
        show=False,
        id="app.copy_command",
        tooltip="Copy the command line that gives the same result",
    ),
    Binding(
        "e",
        "export",
        "Export",
        id="app.export",
        tooltip="Write a picture (SVG), the data (JSON) and tables (CSV)",
    ),
    Binding(
        "z", "maximise", "Zoom", id="app.maximise", tooltip="Fill the screen with the main picture"
    ),
    Binding(
        "ctrl+p",
        "pick('command')",
        "Palette",
        id="app.palette",
        priority=True,
        tooltip="Search every command that works now",
    ),
    Binding(
        "question_mark,f1",
        "help",
        "Help",
        id="app.help",
        tooltip="Show what the panel is and its keys",
    ),
    Binding("q", "quit", "Quit", id="app.quit", tooltip="Leave qtui"),
    Binding(
        "ctrl+q",
        "quit",
        "Quit",
        show=False,
        priority=True,
        id="app.quit_now",
        tooltip="Leave qtui, from anywhere",
    ),
    Binding(
        "ctrl+c",
        "help_quit",
        "Quit",
        show=False,
        system=True,
        id="app.interrupt",
        tooltip="Say which key quits",
    ),
    Binding(
        "ctrl+o",
        "pick('model')",
        "Model",
        show=False,
        priority=True,
        id="app.open_model",
        tooltip="Pick another model: recent ones, a path that Tab completes, or a hub id",
    ),
    Binding(
        "p",
        "pick('place')",
        "Place",
        show=False,
        priority=True,
        id="app.place",
        tooltip="Pick another panel and view",
    ),
    Binding(
        "ctrl+l",
        "redraw",
        "Redraw",
        show=False,
        id="app.redraw",
        tooltip="Send the whole screen to the terminal again",
    ),
    Binding(
        "ctrl+z",
        "suspend_process",
        "Suspend",
        show=False,
        id="app.suspend",
        tooltip="Go back to the shell; fg brings qtui back",
    ),
    *PANEL_BINDINGS,
]

SCREEN_BINDINGS: list[BindingType] = [
    Binding(
        "tab",
        "app.focus_next",
        "Next",
        show=False,
        id="app.focus_next",
        tooltip="Move to the next part of the panel",
    ),
    Binding(
        "shift+tab",
        "app.focus_previous",
        "Previous",
        show=False,
        id="app.focus_previous",
        tooltip="Move to the previous part of the panel",
    ),
    Binding(
        "escape,z",
        "unzoom",
        "Unzoom",
        id="app.unzoom",
        tooltip="Bring the rest of the panel back",
    ),
    Binding(
        "ctrl+c,super+c",
        "screen.copy_text",
        "Copy selection",
        show=False,
        id="app.copy_selection",
        tooltip="Copy the text selected with the mouse",
    ),
]

# The titles of the shell's actions in the palette: "noun: Verb". Other titles are made of the
# panel's id and the tooltip.
PALETTE_TITLES: Mapping[str, str] = {
    "app.copy": "panel: Copy as text",
    "app.copy_command": "panel: Copy the command that gives the same",
    "app.export": "panel: Export picture and data",
    "app.maximise": "panel: Zoom the main picture (maximise)",
    "app.unzoom": "panel: Unzoom, bring the rest back",
    "app.help": "help: Show for this panel",
    "app.open_model": "model: Open another",
    "app.place": "panel: Pick one with its view",
    "app.redraw": "terminal: Draw the whole screen again",
    "app.suspend": "app: Suspend (fg brings it back)",
    "app.quit": "app: Quit",
}

# Names of keys as texts write them, for those that Textual shows otherwise.
_KEY_NAMES: Mapping[str, str] = {
    "esc": "Esc",
    "⏎": "Enter",
    "⌫": "Backspace",
    "space": "Space",
    "tab": "Tab",
    "shift+tab": "Shift+Tab",
    "home": "Home",
    "end": "End",
    "pgup": "PgUp",
    "pgdn": "PgDn",
    "f1": "F1",
}

# Movements are done with keys and would only clutter a list of commands.
MOVEMENT_KEYS = frozenset(
    ("left", "right", "up", "down", "home", "end", "pageup", "pagedown", "enter", "escape")
)


def key_name(display: str) -> str:
    """The name of a key that Textual shows as `display`."""
    return _KEY_NAMES.get(display, display)


def own_bindings(node: type[DOMNode]) -> Iterator[Binding]:
    """The bindings that a class declares itself."""
    yield from Binding.make_bindings(node.__dict__.get("BINDINGS", ()))


def known_ids() -> set[str]:
    """Every id that a configuration may rebind. Imports all panels."""
    declared = Binding.make_bindings([*APP_BINDINGS, *SCREEN_BINDINGS])
    ids = {binding.id for binding in declared}
    for entry in PANELS:
        panel = entry.load()
        for owner in (panel, *panel.KEYED_WIDGETS):
            ids |= {binding.id for binding in own_bindings(owner)}
    return {binding_id for binding_id in ids if binding_id}


def checked_keymap(keys: Mapping[str, str]) -> Mapping[str, str]:
    """The configured keys, if every id exists. Raises UsageError with the nearest id."""
    if not keys:
        return keys
    known = known_ids()
    for binding_id, key in keys.items():
        if binding_id not in known:
            close = get_close_matches(binding_id, known, 1)
            hint = f"Did you mean {close[0]!r}?" if close else "`?` in the app lists the ids."
            raise UsageError(f"The configuration rebinds {binding_id!r}, no such action. {hint}")
        if not all(part.strip() for part in key.split(",")):
            raise UsageError(f"The configuration gives {binding_id!r} no key; write one like 'q'.")
    return keys
