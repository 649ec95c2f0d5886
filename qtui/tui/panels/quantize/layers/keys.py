"""The keys of the Layers view and its help."""

from __future__ import annotations

from textual.binding import Binding

HELP = """\
## Layers

The SQNR of every tensor under the active scheme: a column for each layer, a row for each kind of
module. The brightest cells hurt most. `r` reads all tensors, as `w` does: large ones in a sample of
their rows. A dot (`?` in ASCII) is a tensor that was not read under this scheme, a blank is no
tensor at all, `!` has values that became infinite or NaN, `=` has no error. Where there is no room
for all, a cell is the worst of several, and the line below says of how many.

Arrows and clicks choose a tensor; Enter, or a second click, shows its maps.
"""

KEYS: tuple[Binding, ...] = (
    Binding("r", "read", "Read", id="quantize.read_layers",
            tooltip="Read all tensors under the active scheme"),
    Binding("enter", "maps", "Maps", key_display="⏎", id="quantize.enter",
            tooltip="Show the maps of this tensor"),
    Binding("left,h", "move(0, -1)", "Layer", key_display="←→", id="quantize.left",
            tooltip="The layer before"),
    Binding("right,l", "move(0, 1)", "Next layer", show=False, id="quantize.right",
            tooltip="The next layer"),
    Binding("up,k", "move(-1, 0)", "Module", key_display="↑↓", id="quantize.up",
            tooltip="The module above"),
    Binding("down,j", "move(1, 0)", "Module below", show=False, id="quantize.down",
            tooltip="The module below"),
)  # fmt: skip
