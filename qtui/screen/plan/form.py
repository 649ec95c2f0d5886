"""The plan as a form: one field per line, with the current one marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui.screen.widgets.line import Line, shortened
from qtui_core.dataclass import dataclass

LABELS = 15


@dataclass(frozen=True)
class FormField:
    """A line. `chosen` values were set by the user, others are the usual ones for the method."""

    key: str
    label: str
    group: str
    value: str
    chosen: bool


class PlanForm(DrawnLines, can_focus=True):
    """Fields under the headings of their groups. On a low screen it has no headings and scrolls."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "form--heading", "form--label", "form--value", "form--usual", "form--cursor",
        "form--mark",
    }  # fmt: skip
    DEFAULT_CSS = """
    PlanForm {
        & > .form--heading { color: $primary; text-style: bold; }
        & > .form--label { color: $quiet; }
        & > .form--value { color: $foreground; text-style: bold; }
        & > .form--usual { color: $foreground; }
        & > .form--mark { color: $primary; text-style: bold; }
        & > .form--cursor { background: $cursor; }
        &:nocolor > .form--cursor { text-style: reverse; }
        &:ansi > .form--cursor { text-style: reverse; }
    }
    """

    class FieldClicked(Message):
        """A field was clicked; `again`: it was the current one already."""

        def __init__(self, index: int, again: bool) -> None:
            super().__init__()
            self.index = index
            self.again = again

        def choose(self, panel: Any) -> None:
            """Chooses the field in a panel with a form, and turns the one that was current."""
            self.stop()
            panel.shown.knob = self.index
            panel.body.focus_form()
            if self.again:
                panel.action_turn(1)
            panel.draw()

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.drawing = drawing
        self._fields: Sequence[FormField] = ()
        self._cursor = 0
        self._lines: list[str | int] = []
        self._hidden = (0, 0)
        """How many lines there is no room for, above and below those that are shown."""

    def show(self, fields: Sequence[FormField], cursor: int) -> None:
        """Shows the fields; the one at `cursor` is current."""
        before, hidden = self._contents, self._hidden
        self._fields, self._cursor = fields, cursor
        self._arrange()
        after = self._contents
        # A key changes one or two lines; drawing only these answers faster.
        lines = [y for y, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]
        lines += range(min(len(before), len(after)), max(len(before), len(after)))
        if hidden != self._hidden:
            lines = [*range(max(len(before), len(after)))]
        if lines:
            width = self.size.width
            self.refresh(*(Region(0, y, width, 1) for y in lines))

    def on_resize(self) -> None:
        self._arrange()
        self.refresh()

    @property
    def _contents(self) -> list[object]:
        """The contents of each line, for comparison."""
        return [
            entry if isinstance(entry, str) else (self._fields[entry], entry == self._cursor)
            for entry in self._lines
        ]

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def _arrange(self) -> None:
        """Decides what is on each line: a heading or the index of a field."""
        lines: list[str | int] = []
        group = ""
        for index, field in enumerate(self._fields):
            if field.group != group:
                group = field.group
                lines.append(group)
            lines.append(index)
        height = self.size.height
        if len(lines) > height:
            lines = [line for line in lines if isinstance(line, int)]
        first = 0
        if len(lines) > height and self._cursor in lines:
            at = lines.index(self._cursor)
            first = max(0, min(at - height // 2, len(lines) - height))
        self._hidden = (first, max(0, len(lines) - first - height))
        self._lines = lines[first : first + height] if height else lines

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"form--{name}", partial=True)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line = Line(width, self.base_style)
        if y >= len(self._lines):
            return line.strip()
        entry = self._lines[y]
        if isinstance(entry, str):
            line.put(1, entry, self._style("heading"))
            return line.strip()
        field, here = self._fields[entry], entry == self._cursor
        glyphs = self.drawing.glyphs
        if here:
            line.put(0, glyphs.pointer, self._style("mark"))
        line.put(1, shortened(field.label, LABELS - 2, glyphs.ellipsis), self._style("label"))
        value = shortened(field.value, width - LABELS - 1, glyphs.ellipsis)
        line.put(LABELS, value, self._style("value" if field.chosen else "usual"))
        above, below = self._hidden
        if y == 0 and above:
            line.put(width - 1, glyphs.marker, self._style("mark"))
        elif y == len(self._lines) - 1 and below:
            line.put(width - 1, glyphs.marker_down, self._style("mark"))
        if here and self.has_focus:
            line.paint(0, width, self._style("cursor"))
        return line.strip()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        offset = event.get_content_offset(self)
        if offset is None or not 0 <= offset.y < len(self._lines):
            return
        entry = self._lines[offset.y]
        if isinstance(entry, int):
            self.post_message(self.FieldClicked(entry, entry == self._cursor))
