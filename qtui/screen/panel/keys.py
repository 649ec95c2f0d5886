"""Makes the key bindings of panels."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding
from textual.widget import Widget

#: More lines than any list has: so many steps go to its end.
MANY: Final = 1_000_000


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


def reach_keys(
    panel: str, *, first: str = "g,home", last: str = "G,end", page: bool = True
) -> list[Binding]:
    """The keys to the ends of what has the cursor, and one page on: the actions `edge` and `page`
    of the panel. In a grid Home and End are left to the ends of its lines."""
    found = [
        panel_binding(panel, first, "edge(-1)", "First", "first", "Go to the first line"),
        panel_binding(panel, last, "edge(1)", "Last", "last", "Go to the last line"),
    ]
    if page:
        found += [
            panel_binding(panel, "pageup", "page(-1)", "Page up", "page_up", "One page up"),
            panel_binding(panel, "pagedown", "page(1)", "Page down", "page_down", "One page down"),
        ]
    return found


def undo_keys(panel: str, what: str) -> list[Binding]:
    """The keys that undo a change of `what` and make it again: the actions `undo` and `redo`."""
    return [
        panel_binding(panel, "u", "undo", "Undo", "undo", f"Undo the last change of {what}",
                      show=True),
        panel_binding(panel, "U", "redo", "Redo", "redo", "Do again what was undone"),
    ]  # fmt: skip


def line_end_keys(panel: str) -> list[Binding]:
    """The keys to the ends of a line of a grid: the action `line_end` of the panel."""
    return [
        panel_binding(panel, "home", "line_end(-1)", "Line start", "line_start",
                      "Go to the first place of the line"),
        panel_binding(panel, "end", "line_end(1)", "Line end", "line_end",
                      "Go to the last place of the line"),
    ]  # fmt: skip


def moved(at: int, by: int, count: int) -> int:
    """The place `by` steps further of `count`: one step goes around the ends, more end there."""
    return (at + by) % count if abs(by) == 1 else max(0, min(at + by, count - 1))


def key_of(panel: Widget, binding_id: str) -> str:
    """The key of an action of a panel or of the app, as the footer names it, also where the
    configuration rebinds it. Raises LookupError for an id that neither has."""
    for node in (panel, panel.app):
        for binding in Binding.make_bindings(type(node).BINDINGS):
            if binding.id == binding_id:
                rebound = panel.app._keymap.get(binding_id)
                key = rebound or binding.key
                shown = binding.with_key(key.split(",")[0].strip())
                return panel.app.get_key_display(shown if rebound else binding)
    raise LookupError(binding_id)
