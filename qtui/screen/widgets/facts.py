"""Labels with their values, set in as many columns as the width holds."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual.geometry import Size
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from qtui.screen.messages import Resized
from qtui.screen.widgets.line import Line, shortened
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Fact:
    """One line: a label, a value, and how the value is to be looked at.

    `tone` names a component class of FactSheet ("facts--sign"); `more` continues the value in a
    quiet voice. A fact without a label is a heading.
    """

    label: str
    value: str
    more: str = ""
    tone: str = "value"


class FactSheet(Widget):
    """Facts from top to bottom, then left to right. What does not fit below is cut off."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "facts--heading",
        "facts--label",
        "facts--value",
        "facts--more",
        "facts--sign",
        "facts--exponent",
        "facts--mantissa",
        "facts--warning",
    }

    facts: reactive[tuple[Fact, ...]] = reactive(())
    columns: reactive[int] = reactive(1)
    ellipsis: str = "…"

    def __init__(self, *, columns: int = 1, id: str | None = None) -> None:
        super().__init__(id=id)
        self.set_reactive(FactSheet.columns, columns)

    def on_resize(self) -> None:
        self.post_message(Resized(self))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return -(-len(self.facts) // self.columns)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"facts--{name}", partial=True)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line = Line(width, self.rich_style)
        rows = max(1, min(self.size.height, -(-len(self.facts) // self.columns)))
        label_width = max((len(fact.label) for fact in self.facts), default=0) + 1
        column_width = width // self.columns
        for column in range(self.columns):
            index = column * rows + y
            if y >= rows or index >= len(self.facts):
                continue
            start = column * column_width
            self._put(line, self.facts[index], start, start + column_width - 1, label_width)
        return line.strip()

    def _put(self, line: Line, fact: Fact, start: int, end: int, label_width: int) -> None:
        if not fact.label:
            at = line.put(start, shortened(fact.value, end - start), self._style("heading"))
            line.put(at + 1, shortened(fact.more, end - at - 1), self._style("more"))
            return
        line.put(start, fact.label, self._style("label"))
        start += label_width
        value = shortened(fact.value, end - start, self.ellipsis)
        at = line.put(start, value, self._style(fact.tone))
        if fact.more and end - at > 6:
            line.put(at + 1, shortened(fact.more, end - at - 1, self.ellipsis), self._style("more"))
