"""One line for somebody who never used the app: the shortest way to something of their own."""

from __future__ import annotations

from collections.abc import Mapping

from textual.binding import Binding
from textual.keys import format_key

from qtui.engine.answers.tensors import NO_WEIGHTS
from qtui.tui.keymap import APP_BINDINGS, own_bindings
from qtui.tui.panels import panel_entry


def first_hint(headline: str, keys: Mapping[str, str]) -> str:
    """The line for a model with this headline; `keys` are those that the configuration rebinds."""
    bound = [*Binding.make_bindings(APP_BINDINGS), *own_bindings(panel_entry("quantize").load())]
    named = {each.id: each for each in bound if each.id}

    def key(binding_id: str) -> str:
        first = keys.get(binding_id, named[binding_id].key).partition(",")[0]
        return format_key(first)

    if headline.endswith(NO_WEIGHTS):
        return f"{key('app.panel_memory')}: what a training step of it needs, byte by byte."
    steps = ("app.panel_quantize", "quantize.worst", "quantize.view")
    return f"{', '.join(map(key, steps))}: your worst tensor, and why."
