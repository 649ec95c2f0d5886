"""The line above the Outliers view: a text, or an input field in its place."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from qtui.screen.widgets.field import TypingField


class TypingLine(Horizontal):
    """Shows how outliers are detected; reads a typed outlier."""

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
        """A text was entered; with a `step` by the up (1) or down (-1) key, which also asks for a
        larger or smaller value."""

        def __init__(self, text: str, step: int = 0) -> None:
            super().__init__()
            self.text = text
            self.step = step

    def __init__(self) -> None:
        super().__init__(id="outlier-line")
        self.words = Static(id="outlier-words", markup=False)
        self.field = TypingField(self, id="outlier-field")

    def compose(self) -> ComposeResult:
        yield self.words
        yield self.field

    @property
    def typing(self) -> bool:
        return self.field.takes_keys

    def say(self, words: str, *, injected: bool) -> None:
        self.words.set_class(injected, "-injected")
        self.words.update(words)

    def start(self, text: str, placeholder: str) -> None:
        self.field.placeholder = placeholder
        self.field.open(text)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Entered(event.value))

    def on_key(self, event: events.Key) -> None:
        """Up and down in the field change the typed value."""
        if self.typing and event.key in ("up", "down"):
            event.stop()
            event.prevent_default()
            step = 1 if event.key == "up" else -1
            self.post_message(self.Entered(self.field.value, step))
