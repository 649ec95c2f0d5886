"""A setting on one line: a label and its value; a click or a key changes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class Choice(Widget, can_focus=True):
    """One of a few values. Enter, space, right or a click take the next; left takes the
    previous."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"choice--label", "choice--value"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter,space,right,l",
            "step(1)",
            "Next",
            key_display="Enter",
            id="choice.next",
            tooltip="Take the next value of this setting",
        ),
        Binding(
            "left,h",
            "step(-1)",
            "Previous",
            show=False,
            id="choice.previous",
            tooltip="Take the value before it",
        ),
    ]

    index: reactive[int] = reactive(0)

    class Changed(Message):
        """Another value was chosen."""

        def __init__(self, choice: Choice, value: str) -> None:
            super().__init__()
            self.choice = choice
            self.value = value

        @property
        def control(self) -> Choice:
            return self.choice

    def __init__(
        self,
        label: str,
        values: Sequence[str],
        *,
        tooltip: str | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id, classes="choice")
        self.label = label
        self.values = tuple(values)
        self.tooltip = tooltip

    @property
    def value(self) -> str:
        return self.values[self.index]

    def choose(self, value: str) -> None:
        """Shows a value without a message."""
        self.index = self.values.index(value)

    def action_step(self, by: int) -> None:
        self.index = (self.index + by) % len(self.values)
        self.post_message(self.Changed(self, self.value))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.action_step(1)

    def get_content_width(self, container: object, viewport: object) -> int:
        return len(self.label) + 1 + max(len(value) for value in self.values)

    def render(self) -> Content:
        return Content.assemble(
            (self.label, self.get_visual_style("choice--label")),
            " ",
            (self.value, self.get_visual_style("choice--value")),
        )
