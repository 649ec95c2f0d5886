"""Makes the key bindings of panels."""

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
    """A binding whose id, such as "quantize.filter", the configuration can rebind. The footer shows
    it only with `show`; the help always does."""
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
