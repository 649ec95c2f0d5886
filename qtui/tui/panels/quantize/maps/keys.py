"""The keys of the Maps view and its help."""

from __future__ import annotations

from textual.binding import Binding

HELP = """\
## Maps

`m` and `M` change what the map shows: the magnitude of the error; the **error** with its sign
(orange if the scheme made the value larger, blue if smaller; without colours, shades of `+` and
`-`); the **value**; the **scale** of the element's group; its **code**; and the **difference**, the
magnitude of A's error less that of B's.

`Z` changes how the elements of a cell become one number: the largest magnitude (*max*, which keeps
a single spike visible), the *mean*, the root mean square (*rms*), or the element in the middle
(*nearest*). The title names it. One map has the largest at first, A and B their means, as the
largest error of a format with uneven levels says little. Codes have only *nearest*.

`+` and `-` zoom in and out around the cursor, `0` shows the whole tensor. Moving the cursor beyond
the edge moves the window, and so do Shift and the arrows. The title names the rows and columns of
the window.

`b` shows A and B side by side on one scale, but scales of two formats each on their own, as they
have no unit in common, and so codes, also where one has a zero point; a wide terminal also shows
their difference. `*` moves the cursor to the largest magnitude.
"""

KEYS: tuple[Binding, ...] = (
    Binding("m", "kind(1)", "Map", id="quantize.map",
            tooltip="Next map: error, value, scale, code, difference"),
    Binding("M", "kind(-1)", "Map back", show=False, id="quantize.map_back",
            tooltip="Previous map"),
    Binding("b", "side", "A|B", id="quantize.side_by_side",
            tooltip="A and B side by side, or one map"),
    Binding("Z", "pooling", "Pooling", show=False, id="quantize.pooling",
            tooltip="Pooling: max, mean, rms, nearest"),
    Binding("plus", "zoom(0.5)", "Zoom in", show=False, id="quantize.zoom_in",
            tooltip="Zoom in around the cursor"),
    Binding("minus", "zoom(2)", "Zoom out", show=False, id="quantize.zoom_out",
            tooltip="Zoom out around the cursor"),
    Binding("0", "whole", "All", show=False, id="quantize.zoom_all",
            tooltip="Show the whole tensor again"),
    Binding("F", "counts", "Log counts", show=False, id="quantize.counts",
            tooltip="Histogram: log or plain counts"),
)  # fmt: skip
