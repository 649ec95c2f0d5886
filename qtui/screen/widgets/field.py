"""A field that takes keys in the order they were pressed."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.widgets import Input

_ACTIONS = {binding.key: binding.action for binding in Binding.make_bindings(Input.BINDINGS)}


class Field(Input):
    """An Input whose editing keys act at once. Textual inserts a character when the field sees
    it, but looks bindings up only when a key has bubbled to the screen: of "Ctrl+U 448" sent in
    one burst, as over a slow line, the Ctrl+U would come last and delete the 448."""

    async def on_key(self, event: events.Key) -> None:
        action = _ACTIONS.get(event.key)
        if action is not None and await self.app.run_action(action, self):
            event.stop()
            event.prevent_default()
