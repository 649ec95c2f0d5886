"""The two lines above a panel: what is open and on which device, and the tabs."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from qtui.tui.panels import PANELS, PanelEntry


class HeaderLine(Widget):
    """Program and model at the left, the device at the right."""

    COMPONENT_CLASSES = {"header--name", "header--quiet"}

    model: reactive[str] = reactive("")
    device: reactive[str] = reactive("")
    separator: reactive[str] = reactive("·")

    def render(self) -> Content:
        name = self.get_visual_style("header--name")
        quiet = self.get_visual_style("header--quiet")
        left = Content.assemble(("qtui", name), (f" {self.separator} ", quiet), self.model)
        room = self.size.width - len(self.device) - 2
        if room < 8:
            return left.truncate(self.size.width, ellipsis=True)
        left = left.truncate(room, ellipsis=True, pad=True)
        return Content.assemble(left, "  ", (self.device, quiet))


class TabBar(Widget):
    """The panels by number. The one shown is bracketed by style and by its full title."""

    COMPONENT_CLASSES = {"tabs--active", "tabs--number", "tabs--title"}

    active: reactive[str] = reactive("")

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, panel_id: str) -> None:
            super().__init__()
            self.panel_id = panel_id

    def _titles(self) -> list[tuple[PanelEntry, str]]:
        """Each tab's text: full where all fit, else shortened but for the active one."""
        full = sum(len(entry.title) + 4 for entry in PANELS)
        if full <= self.size.width:
            return [(entry, entry.title) for entry in PANELS]
        active = next((len(e.title) for e in PANELS if e.id == self.active), 0)
        room = (self.size.width - active - 4) // (len(PANELS) - 1) - 4
        keep = max(0, min(5, room))
        return [(e, e.title if e.id == self.active else e.title[:keep]) for e in PANELS]

    def render(self) -> Content:
        active = self.get_visual_style("tabs--active")
        number = self.get_visual_style("tabs--number")
        title = self.get_visual_style("tabs--title")
        parts: list[Content | str | tuple[str, object]] = []
        for entry, text in self._titles():
            if entry.id == self.active:
                parts.append((f" {entry.number} {text} ", active))
            else:
                parts.append((f" {entry.number}", number))
                parts.append((f" {text} " if text else " ", title))
        return Content.assemble(*parts)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        start = 0
        for entry, text in self._titles():
            width = len(f" {entry.number} {text} " if text else f" {entry.number} ")
            if start <= event.x < start + width:
                self.post_message(self.Chosen(entry.id))
                return
            start += width
