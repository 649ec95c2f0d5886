"""The commands of the palette: "noun: Verb", only those that work now."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.binding import ActiveBinding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from qtui.screen.panel.hooks import PaletteEntry
from qtui.tui.keymap import MOVEMENT_KEYS, PALETTE_TITLES
from qtui.tui.panels import PANELS
from qtui.tui.state import recent_models
from qtui.tui.theme import AUTO

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp


class QtuiCommands(Provider):
    """The commands of the shell, of the current panel, and of the focused widget."""

    @property
    def qtui(self) -> QtuiApp:
        return cast("QtuiApp", self.app)

    def entries(self) -> Iterator[PaletteEntry]:
        """Every command that works now, once each."""
        yield from self._bindings()
        panel = self.qtui.panel
        if panel is not None:
            yield from panel.palette()
        for entry in PANELS:
            if panel is None or entry.id != panel.PANEL_ID:
                yield PaletteEntry(
                    f"panel: Show {entry.title}",
                    f"Key {entry.number}",
                    partial(self.qtui.action_show_panel, entry.id),
                )
        for model in recent_models(self.qtui.session.state):
            if model != self.qtui.session.state.model:
                run = partial(self.qtui.open_model, model)
                yield PaletteEntry(f"model: Open {model}", "It was open before", run)
        for name in sorted(self.qtui.available_themes, key=lambda n: (not n.startswith("qtui"), n)):
            if name != self.qtui.theme and self.qtui.theme_choice.offers(name):
                yield PaletteEntry(
                    f"theme: Switch to {name}",
                    "Kept until you choose another, here or in the configuration",
                    partial(self.qtui.theme_choice.choose, name),
                )
        if not self.qtui.theme_choice.follows:
            yield PaletteEntry(
                "theme: Switch to auto",
                "Light or dark, as the terminal's background is",
                partial(self.qtui.theme_choice.choose, AUTO),
            )

    def _bindings(self) -> Iterator[PaletteEntry]:
        keys: dict[str, list[str]] = {}
        found: dict[str, ActiveBinding] = {}
        for active in self.screen.active_bindings.values():
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
                shown = " ".join(
                    self.qtui.get_key_display(binding.with_key(key)) for key in keys[binding_id]
                )
                run = partial(self.app.run_action, binding.action, node)
                yield PaletteEntry(title, f"Key {shown}", run)

    async def discover(self) -> Hits:
        for entry in self.entries():
            yield DiscoveryHit(entry.title, entry.run, help=entry.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self.entries():
            score = matcher.match(entry.title)
            if score > 0:
                yield Hit(score, matcher.highlight(entry.title), entry.run, help=entry.help)
