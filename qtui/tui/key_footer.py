"""The line with the keys that work now. Each can be clicked."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.binding import Binding
from textual.reactive import reactive
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from qtui.screen.panel.base import Panel
from qtui.screen.widgets.line import Line
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class KeyHint:
    """One key of the footer: its text, and the key that a click presses."""

    id: str
    key: str
    display: str
    description: str
    tooltip: str


class KeyFooter(Widget):
    """One line, rendered as a whole: Textual's own footer mounts a widget for each key at every
    change of focus. Help, palette and quit have fixed places at the right. The way back from a zoom
    comes first, then as many as fit of the panel's keys and the other keys of the shell (ids
    "app.…"); if there are more, the key of the help, which lists all, is called MORE."""

    FIRST = ("app.unzoom",)
    HELP = "app.help"
    ALWAYS = ("app.palette", HELP, "app.quit")
    MORE = "More"

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--description"}

    hints: reactive[tuple[KeyHint, ...]] = reactive(())
    always: reactive[tuple[KeyHint, ...]] = reactive(())

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.refresh_keys)
        self.refresh_keys(self.screen)

    def refresh_keys(self, screen: Screen[object]) -> None:
        """Reads the bindings that are active now."""
        first: dict[str, KeyHint] = {}
        panel: dict[str, KeyHint] = {}
        shell: dict[str, KeyHint] = {}
        always: dict[str, KeyHint] = {}
        for node, binding, enabled, tooltip in screen.active_bindings.values():
            if not (binding.show and enabled and binding.description):
                continue
            if isinstance(node, Panel) and (word := node.key_word(binding.action)):
                binding, tooltip = replace(binding, description=word), ""
            part = panel
            if binding.id and binding.id.startswith("app."):
                part = always if binding.id in self.ALWAYS else shell
                part = first if binding.id in self.FIRST else part
            part.setdefault(binding.id or binding.action, self._hint(binding, tooltip))
        self.hints = (*first.values(), *panel.values(), *shell.values())
        self.always = tuple(always.values())

    def _hint(self, binding: Binding, tooltip: str) -> KeyHint:
        display = self.app.get_key_display(binding)
        meaning = tooltip or binding.description
        return KeyHint(binding.id or "", binding.key, display, binding.description, meaning)

    def _placed(self) -> list[tuple[int, KeyHint]]:
        """The hints that fit, each with its column."""
        placed: list[tuple[int, KeyHint]] = []
        column, right = 0, self.size.width - sum(_width(hint) for hint in self.always)
        for hint in self.hints:
            if column + _width(hint) > right:
                break
            placed.append((column, hint))
            column += _width(hint)
        cut = len(placed) < len(self.hints)
        column = max(column, right)
        for hint in self.always:
            name = self.MORE if cut and hint.id == self.HELP else hint.description
            placed.append((column, replace(hint, description=name)))
            column += _width(hint)
        return placed

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.rich_style)
        key = self.get_component_rich_style("keys--key", partial=True)
        description = self.get_component_rich_style("keys--description", partial=True)
        for start, hint in self._placed():
            at = line.put(start + 1, hint.display, key)
            line.put(at + 1, hint.description, description)
        return line.strip()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        hint = self._at(event.x)
        self.tooltip = hint.tooltip if hint else None

    def on_click(self, event: events.Click) -> None:
        event.stop()
        hint = self._at(event.x)
        if hint:
            self.app.simulate_key(hint.key)

    def _at(self, column: int) -> KeyHint | None:
        for start, hint in self._placed():
            if start <= column < start + _width(hint):
                return hint
        return None


def _width(hint: KeyHint) -> int:
    return len(hint.display) + len(hint.description) + 3
