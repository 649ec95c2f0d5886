"""Panels that are not built yet. They say in one line what they will show, and nothing else."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from qtui.tui.panels.base import Panel


class UpcomingPanel(Panel):
    """A tab whose subject is fixed and whose panel is not written yet."""

    WILL_SHOW: str

    def compose_body(self) -> ComposeResult:
        yield Static(f"Not built yet. {self.WILL_SHOW}", classes="upcoming")


class NumericsPanel(UpcomingPanel):
    PANEL_ID = "numerics"
    TITLE = "Numerics"
    NUMBER = 6
    HELP = "Not built yet."
    WILL_SHOW = (
        "This panel will show weights that fail to move in low precision, stochastic rounding, "
        "and scaled low-bit matrix products."
    )
