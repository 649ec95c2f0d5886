"""The two lines above a panel: the model and the device, and the tabs."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from qtui.screen.widgets.line import Line, shortened
from qtui.tui.panels import tabs
from qtui_core.models.quoting import printable

#: Cells of a name that are enough to identify the model.
LEAST_NAME = 8


class HeaderLine(Widget):
    """Program and model at the left, the device at the right."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"header--name", "header--note", "header--quiet"}

    model: reactive[str] = reactive("")
    note: reactive[str] = reactive("")
    """A status that differs from the rest of the line: a model that is being opened, or could not
    be."""
    about: reactive[str] = reactive("")
    """What the current panel is about in place of the model; "" if it is about the model."""
    device: reactive[str] = reactive("")
    separator: reactive[str] = reactive("·")

    def show_opening(self, model: str, fraction: float) -> None:
        """Shows that a model is being opened, and how far it is."""
        done = f" {fraction:.0%}" if fraction else ""
        self.note = f"opening {printable(model)}{done}"

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.rich_style)
        quiet = self.get_component_rich_style("header--quiet", partial=True)
        at = line.put(0, "qtui", self.get_component_rich_style("header--name", partial=True))
        at = line.put(at, f" {self.separator} ", quiet)
        room = line.width - at - len(self.device) - 2
        with_device = room >= 8
        room = room if with_device else line.width - at
        if said := self.note or (f"here {self.about}" if self.about else ""):
            note = shortened(said, max(0, room - 10))
            at = line.put(at, fitted_title(self.model, room - len(note) - 2))
            line.put(at + 2, note, self.get_component_rich_style("header--note", partial=True))
        else:
            line.put(at, fitted_title(self.model, room))
        if with_device:
            line.put_right(line.width, self.device, quiet)
        return line.strip()


def fitted_title(title: str, width: int) -> str:
    """A model's name and, after two spaces, its facts, in at most `width` cells. The beginning of a
    long path is cut first, as its end identifies the model and the facts are short."""
    name, gap, facts = title.partition("  ")
    room = width - len(gap + facts)
    if len(title) <= width or not facts or room < LEAST_NAME:
        return shortened(title, width)
    return f"…{name[len(name) - room + 1 :]}{gap}{facts}"


class TabBar(Widget):
    """The panels by number. The current one is marked by its style and its full title."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "tabs--active",
        "tabs--number",
        "tabs--title",
    }

    active: reactive[str] = reactive("")

    class TabChosen(Message):
        """A tab was clicked."""

        def __init__(self, panel_id: str) -> None:
            super().__init__()
            self.panel_id = panel_id

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.rich_style)
        active, number, title = (
            self.get_component_rich_style(f"tabs--{name}", partial=True)
            for name in ("active", "number", "title")
        )
        for start, entry, text in tabs(self.size.width, self.active):
            if entry.id == self.active:
                line.put(start, text, active)
            else:
                line.put(start, text, title)
                line.put(start, text[:2], number)
        return line.strip()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        for start, entry, text in tabs(self.size.width, self.active):
            if start <= event.x < start + len(text):
                self.post_message(self.TabChosen(entry.id))
