"""What panels of several views share: keys that go through them, and tabs that are clicked."""

from __future__ import annotations

from textual import on

from qtui.screen.panel.base import Panel
from qtui.screen.widgets.view_tabs import ViewTabs


class ViewedPanel(Panel):
    """A panel with one `ViewTabs`, which names its views in the order of the keys and marks the
    one that is shown."""

    def action_view(self, by: int) -> None:
        """The view `by` places further, from the last on to the first."""
        tabs = self.query_one(ViewTabs)
        self._show_place((tabs.active + by) % len(tabs.titles))

    @on(ViewTabs.Clicked)
    def _tab_clicked(self, message: ViewTabs.Clicked) -> None:
        message.stop()
        self._show_place(message.index)

    def _show_place(self, place: int) -> None:
        """Show the view of the tab at `place`, and mark that before this returns."""
        raise NotImplementedError
