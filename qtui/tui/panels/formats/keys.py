"""The keys of the Formats panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import panel_binding, reach_keys

HELP = """\
One value and its bits in every format: **s**ign, **e**xponent, **m**antissa, **i**nteger. A star
marks the format whose bits gave the value.

Type a number (`0.1`, `-1/3`, `1e-3`, `0x1.8p3`, `inf`, `nan`), or the bits of the chosen format
as hex (`0x3d`) or binary (`0b00111101`); `e4m3:0x3d` names the format itself.

`P` pins the chosen format: it stays beside the one under the cursor, with its bits, its error, its
neighbours and its range, and the sentence compares both. `P` marks it in the list, and its number
on the line. `P` on the pinned format takes the pin away.

An error is exact, absolute and relative: as a part of the value that was asked for. "infinite" is
the relative error where 0 became a number or a number became infinite, "none" where there is no
such ratio.

The line at the bottom shows the numbers of several formats around the value. A tick is one number;
a bar is several, and grows with each doubling of their count. The ◆ is the number that the value
becomes, and the bracket marks all values that become this number.
"""

_binding = partial(panel_binding, "formats")

FORMATS_BINDINGS: list[BindingType] = [
    _binding("left,h", "move_bit(-1)", "Bit", "bit_left", "Move to the bit at the left",
             show=True, key_display="←→"),
    _binding("right,l", "move_bit(1)", "Bit", "bit_right", "Move to the bit at the right"),
    _binding("up,k", "move_row(-1)", "Format", "row_up", "Choose the format above",
             show=True, key_display="↑↓"),
    _binding("down,j", "move_row(1)", "Format", "row_down", "Choose the format below"),
    _binding("f", "formats", "Format", "format", "Pick a format by letters of its name", show=True,
             priority=True),
    _binding("space", "flip", "Flip", "flip", "Flip the bit under the cursor",
             show=True, key_display="Space"),
    # Priority: Textual then runs the action before it handles the next key. Otherwise digits that
    # arrive in the same packet would not reach the field and would change the panel.
    _binding("i", "edit", "Type", "edit", "Type a number, hex (0x) or bits (0b)",
             show=True, priority=True),
    _binding("escape", "leave", "Back", "leave", "Leave the field and keep the value",
             show=True, key_display="Esc", priority=True),
    _binding("plus", "step(1)", "Next", "next", "Go to the next larger number",
             show=True, key_display="+"),
    _binding("minus", "step(-1)", "Previous", "previous", "Go to the next smaller number"),
    _binding("R", "next_rounding", "Rounding", "rounding", "Take the next rounding mode",
             show=True),
    _binding("C", "next_saturation", "Saturate", "saturation",
             "Choose what happens to values that are too large", show=True),
    _binding("P", "pin", "Pin", "pin", "Keep this format beside the others, or let it go",
             show=True),
    _binding("r", "draw", "Draw", "draw", "Draw new bits for stochastic rounding", show=True),
    _binding("v", "ranges", "Ranges", "view", "Show the range of each format", show=True),
    _binding("full_stop", "zoom(-1)", "Zoom in", "zoom_in", "Zoom the number line in"),
    _binding("comma", "zoom(1)", "Zoom out", "zoom_out", "Zoom the number line out"),
    *reach_keys("formats", first="g", last="G"),
    _binding("home", "move_bit(-64)", "First bit", "first_bit", "Move to the sign bit"),
    _binding("end", "move_bit(64)", "Last bit", "last_bit", "Move to the lowest bit"),
]  # fmt: skip
