"""The keys of the Maps view and its help."""

from __future__ import annotations

from textual.binding import Binding

HELP = """\
## Maps

`m` and `M` turn what the map shows: the size of the error, the **error** with its sign (orange:
the scheme made the value larger, blue: smaller; where there are no colours, `+` and `-` shades),
the **value**, the **scale** of the element's group, its **code**, and by how much the error of A
is larger than that of B (the **difference**).

`p` turns how the elements of a cell become one number: the largest magnitude (*max*, which keeps
a single spike visible), the *mean*, the root mean square (*rms*), or the element in the middle
(*nearest*). The title names it. Codes have only *nearest*.

`+` and `-` zoom in and out around the cursor, `0` shows all again. The cursor moves the window
where it runs over its edge, and so do Shift and the arrows. The title says the rows and columns
of the window.

`b` shows A and B side by side on one scale, in a wide terminal with their difference as a third
map. `.` moves the cursor to the largest magnitude.
"""

KEYS: tuple[Binding, ...] = (
    Binding("m", "kind(1)", "Map", id="quantize.map",
            tooltip="Next map: error, value, scale, code, difference"),
    Binding("M", "kind(-1)", "Map back", show=False, id="quantize.map_back",
            tooltip="Map before"),
    Binding("b", "side", "A|B", id="quantize.side_by_side",
            tooltip="A and B side by side, or one map"),
    Binding("p", "pooling", "Pooling", show=False, id="quantize.pooling",
            tooltip="Pooling: max, mean, rms, nearest"),
    Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", show=False, id="quantize.zoom_in",
            tooltip="Zoom in around the cursor"),
    Binding("minus", "zoom(2)", "Zoom out", show=False, id="quantize.zoom_out",
            tooltip="Zoom out around the cursor"),
    Binding("0", "whole", "All", show=False, id="quantize.zoom_all",
            tooltip="Show the whole tensor again"),
    Binding("c", "counts", "Log counts", show=False, id="quantize.counts",
            tooltip="Histogram: log or plain counts"),
)  # fmt: skip
