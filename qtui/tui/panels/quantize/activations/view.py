"""What flows through a module, and what quantizing it does to its output."""

from __future__ import annotations

from qtui.tui.panels.quantize.views import View


class ActivationsView(View):
    """What flows through a module, and what quantizing it does to its output."""

    VIEW_ID = "activations"
    TITLE = "Activations"
