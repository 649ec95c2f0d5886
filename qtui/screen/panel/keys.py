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
    it only with `show`; the help always does. A key that opens or leaves a field has `priority`:
    Textual then runs its action before it handles the next key of the same packet, which would
    otherwise still go to where the focus was."""
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
