"""Picks a command that works now, "noun: Verb", and runs it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.binding import ActiveBinding

from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.picker.screen import pick
from qtui.tui.keymap import MOVEMENT_KEYS, PALETTE_TITLES
from qtui.tui.panels import PANELS
from qtui.tui.state import recent_models
from qtui.tui.theme import AUTO

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp


def commands(app: QtuiApp) -> Iterator[PaletteEntry]:
    """Every command that works now, once each: of the shell, of the current panel, and of what has
    the focus."""
    yield from _bindings(app)
    panel = app.panel
    if panel is not None:
        yield from panel.palette()
    for entry in PANELS:
        if panel is None or entry.id != panel.PANEL_ID:
            yield PaletteEntry(
                f"panel: Show {entry.title}",
                f"Key {entry.number} does it at once.",
                partial(app.action_show_panel, entry.id),
                f"key {entry.number}",
            )
    for model in recent_models(app.session.state):
        if model != app.session.state.model:
            run = partial(app.open_model, model)
            yield PaletteEntry(f"model: Open {model}", "It was open before.", run)
    for name in sorted(app.available_themes, key=lambda n: (not n.startswith("qtui"), n)):
        if name != app.theme and app.theme_choice.offers(name):
            yield PaletteEntry(
                f"theme: Switch to {name}",
                "Kept until you choose another, here or in the configuration.",
                partial(app.theme_choice.choose, name),
            )
    if not app.theme_choice.follows:
        yield PaletteEntry(
            "theme: Switch to auto",
            "Light or dark, as the terminal's background is.",
            partial(app.theme_choice.choose, AUTO),
        )


def _bindings(app: QtuiApp) -> Iterator[PaletteEntry]:
    keys: dict[str, list[str]] = {}
    found: dict[str, ActiveBinding] = {}
    for active in app.screen.active_bindings.values():
        binding_id = active.binding.id
        if active.enabled and binding_id:
            keys.setdefault(binding_id, []).append(active.binding.key)
            found.setdefault(binding_id, active)
    for binding_id, (node, binding, _, tooltip) in found.items():
        noun = binding_id.partition(".")[0]
        title = PALETTE_TITLES.get(binding_id, "")
        if noun != "app" and keys[binding_id][0].rpartition("+")[2] not in MOVEMENT_KEYS:
            title = f"{noun}: {tooltip or binding.tooltip}"
        if title:
            shown = " or ".join(
                app.get_key_display(binding.with_key(key)) for key in keys[binding_id]
            )
            run = partial(app.run_action, binding.action, node)
            yield PaletteEntry(title, f"Key {shown} does it at once.", run, f"key {shown}")


async def pick_command(app: QtuiApp) -> None:
    """Asks for a command, and runs it."""
    entries = list(commands(app))
    picking = Picking(
        title="Command",
        names=[entry.title for entry in entries],
        row=lambda at: PickerRow(entries[at].facts, entries[at].help),
        none="No command that works now has these letters in this order.",
        hint="letters of what to do",
    )

    def taken(at: int | str) -> None:
        app.call_later(entries[int(at)].run)

    await pick(app, app.drawing, picking, taken)
