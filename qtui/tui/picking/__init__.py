"""What the shell lets pick: a command, a model, a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp


async def pick_a(what: str, app: QtuiApp) -> None:
    """Asks for one and takes it: "command", "model" or "place"."""
    from qtui.tui.picking.command import pick_command
    from qtui.tui.picking.model import pick_model
    from qtui.tui.picking.place import pick_place

    await {"command": pick_command, "model": pick_model, "place": pick_place}[what](app)
