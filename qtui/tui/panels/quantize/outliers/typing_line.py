"""The line above the Outliers view: words, or a field in their place."""

from __future__ import annotations

from typing import Literal

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from qtui.screen.widgets.field import Field

Purpose = Literal["outlier", "limit"]


class TypingLine(Horizontal):
    """Says what is looked at; takes the text of an outlier or of a limit."""

    DEFAULT_CSS = """
    TypingLine {
        height: 1;
        Static { height: 1; width: 1fr; color: $quiet; }
        Static.-injected { color: $warning; }
        Field { display: none; }
        &.-typing Static { display: none; }
        &.-typing Field { display: block; }
    }
    """

    class Entered(Message):
        """A text was entered, or (`step`) an arrow key asks for it and then for more or less."""

        def __init__(self, purpose: Purpose, text: str, step: int = 0) -> None:
            super().__init__()
            self.purpose: Purpose = purpose
            self.text = text
            self.step = step

    def __init__(self) -> None:
        super().__init__(id="outlier-line")
        self.words = Static(id="outlier-words", markup=False)
        self.field = Field(compact=True, select_on_focus=True, id="outlier-field")
        self._purpose: Purpose = "outlier"

    def compose(self) -> ComposeResult:
        yield self.words
        yield self.field

    @property
    def typing(self) -> bool:
        return self.field.has_focus

    def say(self, words: str, *, injected: bool) -> None:
        self.words.set_class(injected, "-injected")
        self.words.update(words)

    def start(self, purpose: Purpose, text: str, placeholder: str) -> None:
        self._purpose = purpose
        self.field.placeholder = placeholder
        self.field.value = text
        self.add_class("-typing")
        self.screen.set_focus(self.field)  # not focus(), which waits: keys may come together

    def stop(self) -> None:
        self.remove_class("-typing")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Entered(self._purpose, event.value))

    def on_key(self, event: events.Key) -> None:
        """Up and down in the field change what is typed."""
        if self.typing and event.key in ("up", "down"):
            event.stop()
            event.prevent_default()
            step = 1 if event.key == "up" else -1
            self.post_message(self.Entered(self._purpose, self.field.value, step))
