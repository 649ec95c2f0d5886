"""An input field that handles keys in the order in which they were pressed."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

_ACTIONS = {binding.key: binding.action for binding in Binding.make_bindings(Input.BINDINGS)}

#: Characters that a field holds. Megabytes, pasted by mistake, would be drawn at every key.
LONGEST: Final = 1 << 14


class Field(Input):
    """An Input whose editing keys act at once. Textual inserts a character when the field gets it,
    but looks up bindings only after a key has bubbled to the screen. If "Ctrl+U 448" arrives in one
    burst, as over a slow line, Ctrl+U would come last and delete the 448."""

    @property
    def takes_keys(self) -> bool:
        """Whether the next key goes to this field. (`has_focus` changes later, once the field has
        handled a message.)"""
        return self.is_attached and self.screen.focused is self

    def replace(self, text: str, start: int, end: int) -> None:
        super().replace(text[: max(0, LONGEST - len(self.value) + end - start)], start, end)

    async def on_key(self, event: events.Key) -> None:
        action = _ACTIONS.get(event.key)
        if action is not None and await self.app.run_action(action, self):
            event.stop()
            event.prevent_default()


class TypingField(Field):
    """A field that is there only while something is typed: its `holder` has the class `-typing`
    meanwhile, and shows the field by that. The footer says what Enter does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Take", key_display="Enter"),
    ]

    def __init__(self, holder: Widget, *, id: str, select_on_focus: bool = True) -> None:
        super().__init__(compact=True, select_on_focus=select_on_focus, id=id)
        self._holder = holder

    def open(self, text: str) -> None:
        """Lets another text be typed in the place of this one."""
        self._holder.add_class("-typing")
        self.value = text
        self.cursor_position = len(text)
        self.screen.set_focus(self)  # focus() acts later, after keys of the same packet

    def close(self) -> None:
        """What was typed is taken or given up; the focus is moved by who knows where to."""
        self._holder.remove_class("-typing")
