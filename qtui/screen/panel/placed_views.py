"""Views that are names and functions, until each is a View: it goes with the last of them."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult

from qtui.screen.panel.asking import AskingPanel
from qtui.screen.panel.base import Panel
from qtui.screen.widgets.view_tabs import ViewTabs


class PlacedViewsPanel(AskingPanel):
    """Its views are known by their places."""

    VIEWS = ()

    def compose(self) -> ComposeResult:
        yield from Panel.compose(self)

    @property
    def tabs(self) -> ViewTabs:  # type: ignore[override]
        return self.query_one(ViewTabs)

    def show_view(self, place: Any) -> None:
        """Shows the view of the tab at `place`."""

    def _turn_to(self, place: int) -> None:
        self.show_view(place)
