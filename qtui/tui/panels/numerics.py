"""Panel 6, which is not built yet: it says in one line what it will show, and nothing else."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from qtui.screen.panel.base import Panel


class NumericsPanel(Panel):
    """Its subject is fixed."""

    PANEL_ID = "numerics"
    TITLE = "Numerics"
    NUMBER = 6
    HELP = "Not built yet."

    def compose_body(self) -> ComposeResult:
        yield Static(
            "Not built yet. This panel will show weights that fail to move in low precision, "
            "stochastic rounding, and scaled low-bit matrix products.",
            classes="upcoming",
        )
