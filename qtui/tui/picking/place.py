"""Picks another place: a panel and a view of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtui.screen.panel.asking import AskingPanel
from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.picker.screen import pick
from qtui.tui.panels import PANELS, PanelEntry

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp


def places() -> list[tuple[PanelEntry, str]]:
    """Every panel and view, in the order of the tabs; a panel without views has the view ""."""
    return [(entry, view) for entry in PANELS for view in (entry.views or ("",))]


def place_picking(panel_id: str, view: str) -> Picking:
    """Another panel and view than the present one."""
    listed = places()

    def row(at: int) -> PickerRow:
        entry, view = listed[at]
        note = f"Key {entry.number} shows {entry.title}"
        note += f"; v goes from view to view, here to {view}." if view else "."
        return PickerRow(f"key {entry.number}", note)

    present = [(entry.id, view) for entry, view in listed]
    at = present.index((panel_id, view)) if (panel_id, view) in present else 0
    names = [f"{e.number} {e.title}" + (f" › {view}" if view else "") for e, view in listed]
    return Picking("Place", names, row, "No panel or view has these letters in this order.", at)


async def pick_place(app: QtuiApp) -> None:
    """Asks for a panel and a view, and shows them."""
    panel = app.panel
    view = "" if panel is None else panel.view_title

    async def show(entry: PanelEntry, title: str) -> None:
        await app.action_show_panel(entry.id)
        shown = app.panel
        if isinstance(shown, AskingPanel) and title != shown.view.TITLE:
            shown.show_view(next(each for each in shown.views if title == each.TITLE))

    def taken(picked: int | str) -> None:
        app.run_worker(show(*places()[int(picked)]), group="panel", exclusive=True)

    picking = place_picking(panel.PANEL_ID if panel is not None else "", view)
    await pick(app, app.drawing, picking, taken)
