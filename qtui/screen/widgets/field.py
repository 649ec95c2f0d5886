"""An input field that handles keys in the order in which they were pressed."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.widgets import Input

_ACTIONS = {binding.key: binding.action for binding in Binding.make_bindings(Input.BINDINGS)}


class Field(Input):
    """An Input whose editing keys act at once. Textual inserts a character when the field gets it,
    but looks up bindings only after a key has bubbled to the screen. If "Ctrl+U 448" arrives in one
    burst, as over a slow line, Ctrl+U would come last and delete the 448."""

    async def on_key(self, event: events.Key) -> None:
        action = _ACTIONS.get(event.key)
        if action is not None and await self.app.run_action(action, self):
            event.stop()
            event.prevent_default()
