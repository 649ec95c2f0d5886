"""Picks another model: a recent one, a path, or an id of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qtui.screen.picker.paths import path_completions, path_row
from qtui.screen.picker.picking import PickerRow, Picking, text_of
from qtui.screen.picker.screen import pick
from qtui.tui.state import recent_models
from qtui_core.errors import UsageError
from qtui_core.models.files.layout import GGUF_SUFFIX, SUFFIX
from qtui_core.models.hub import parse_hub_id
from qtui_core.models.opening import DEMO

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp

OPENS: Final = "Enter opens it: its header first, weights when they are shown."


def model_picking(present: str, recent: Sequence[str]) -> Picking:
    """Another model: the recent ones, newest first, a path, or an id of the hub."""
    names = tuple(dict.fromkeys((present, *recent, DEMO)))

    def row(at: int) -> PickerRow:
        name = names[at]
        facts = "open now" if name == present else "recent" if name in recent else ""
        if name == DEMO:
            return PickerRow(facts, f"demo: a small model that comes with qtui. {OPENS}")
        found = path_row(name, OPENS)
        where = "on this machine" if found else "of the hub, or gone from this machine"
        return PickerRow(facts, f"{name}: {where}. {OPENS}")

    def typed(text: str) -> PickerRow:
        found = path_row(text, OPENS)
        if found is not None:
            more = f" {OPENS}" if found.facts == "folder" else ""
            return PickerRow(found.facts, f"{found.note}{more}")
        if text.startswith((".", "/", "~")) or parse_hub_id(text) is None:
            raise UsageError(f"There is no file or folder {text!r}, and it is no hub id, org/name.")
        note = f"{text} is not on this machine: Enter asks the hub for it."
        return PickerRow("hub", note, below="/" not in text)

    return Picking(
        title="Model",
        names=names,
        row=row,
        none="No model that was opened has these letters in this order.",
        hint="letters of a recent one, org/name, a folder, a .safetensors or .gguf file, demo",
        typed=typed,
        completed=path_completions((SUFFIX, GGUF_SUFFIX, "config.json")),
    )


async def pick_model(app: QtuiApp) -> None:
    """Asks for a model, and opens it."""
    if unfinished := app.unfinished():
        app.tell(f"{unfinished} Another model can be opened once it is over.", "warning")
        return
    picking = model_picking(app.model, recent_models(app.session.state))
    await pick(app, app.drawing, picking, lambda picked: app.open_model(text_of(picking, picked)))
