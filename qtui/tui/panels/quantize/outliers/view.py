"""Which elements are outliers, and what they cost."""

from __future__ import annotations

from qtui.tui.panels.quantize.views import View


class OutliersView(View):
    """Which elements are outliers, and what they cost."""

    VIEW_ID = "outliers"
    TITLE = "Outliers"
