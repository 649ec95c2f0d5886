"""The keys of a heatmap."""

from __future__ import annotations

from textual.binding import Binding, BindingType

HEATMAP_BINDINGS: list[BindingType] = [
    Binding("left,h", "move(0, -1)", "Left", show=False, id="heatmap.left",
            tooltip="Move the cursor one cell left"),
    Binding("right,l", "move(0, 1)", "Right", show=False, id="heatmap.right",
            tooltip="Move the cursor one cell right"),
    Binding("up,k", "move(-1, 0)", "Up", show=False, id="heatmap.up",
            tooltip="Move the cursor one cell up"),
    Binding("down,j", "move(1, 0)", "Down", show=False, id="heatmap.down",
            tooltip="Move the cursor one cell down"),
    Binding("shift+left,H", "push(0, -1)", "Far left", show=False, id="heatmap.far_left",
            tooltip="Ten cells left, or the window when zoomed in"),
    Binding("shift+right,L", "push(0, 1)", "Far right", show=False, id="heatmap.far_right",
            tooltip="Ten cells right, or the window when zoomed in"),
    Binding("shift+up,K", "push(-1, 0)", "Far up", show=False, id="heatmap.far_up",
            tooltip="Ten cells up, or the window when zoomed in"),
    Binding("shift+down,J", "push(1, 0)", "Far down", show=False, id="heatmap.far_down",
            tooltip="Ten cells down, or the window when zoomed in"),
    Binding("full_stop", "peak", "Peak", id="heatmap.peak",
            tooltip="Move the cursor to the largest magnitude"),
    Binding("enter", "choose", "To Formats", id="heatmap.choose",
            tooltip="Show this element in Formats"),
]  # fmt: skip
