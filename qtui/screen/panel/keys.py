"""The keys of a panel."""

from __future__ import annotations

from textual.binding import Binding


def panel_binding(
    panel: str,
    key: str,
    action: str,
    description: str,
    id: str,
    tooltip: str,
    *,
    show: bool = False,
    priority: bool = False,
    key_display: str | None = None,
) -> Binding:
    """A binding under the id that a configuration rebinds, "quantize.filter"; most are in the
    help only and not in the footer (`show`)."""
    return Binding(
        key,
        action,
        description,
        show=show,
        priority=priority,
        key_display=key_display,
        id=f"{panel}.{id}",
        tooltip=tooltip,
    )
