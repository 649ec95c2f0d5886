"""The one sentence at the bottom of a panel."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget


class Sentence(Widget):
    """Plain text, wrapped to the two lines that every panel keeps for it."""

    text: reactive[str] = reactive("")

    def __init__(self, text: str = "") -> None:
        super().__init__(classes="sentence")
        self.set_reactive(Sentence.text, text)

    def render(self) -> Content:
        return Content(self.text)
