"""The keys of the Codebooks panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import line_end_keys, panel_binding, reach_keys, undo_keys

HELP = """\
Low-bit schemes side by side, code by code, on a real tensor.

{views}
Schemes can be compared only at *equal bits per parameter*, scales included. `=` chooses the group
size of every scheme so that it takes as many bits as the first one; sizes need not be powers of
two.
"""

_binding = partial(panel_binding, "codebooks")

URGENT_BINDINGS: list[BindingType] = [
    _binding("r", "restart", "Restart", "restart",
             "Start the engine again, or read again", show=True),
    _binding("escape", "stop", "Stop", "stop", "Stop reading the tensor", show=True),
    _binding("escape", "back", "Back", "back", "Leave the field or the list", show=True,
             priority=True),
]  # fmt: skip
CODEBOOKS_BINDINGS: list[BindingType] = [
    _binding("equals_sign", "equal_bits", "Equal bits", "equal_bits",
             "Give all schemes the bits per parameter of the first one", show=True,
             key_display="="),
    _binding("s", "schemes", "Schemes", "type",
             "Pick one more scheme, or type those to compare; the first one sets the bits",
             show=True, priority=True),
    _binding("x", "remove", "Remove", "remove", "Remove the chosen scheme"),
    _binding("right_square_bracket", "block(1)", "Block", "larger",
             "Larger blocks and groups", show=True, key_display="]"),
    _binding("left_square_bracket", "block(-1)", "Smaller", "smaller",
             "Smaller blocks and groups", key_display="["),
    _binding("right_curly_bracket", "nested_block(1)", "Larger nested", "nested_larger",
             "Double quantization: more scales share a constant", key_display="}"),
    _binding("left_curly_bracket", "nested_block(-1)", "Smaller nested", "nested_smaller",
             "Double quantization: fewer scales share a constant", key_display="{"),
    _binding("D", "double_quantization", "Double quant", "double_quantization",
             "Double quantization of the scales of nf4 and fp4", show=True),
    _binding("t", "tensors", "Tensor", "tensors", "Pick a tensor by letters of its name",
             show=True, priority=True),
    _binding("slash", "filter", "Filter", "filter", "Filter the tensors by name", show=True,
             priority=True),
    _binding("left,h", "move(-1)", "Code", "left", "The previous code or step", show=True,
             key_display="←→"),
    _binding("right,l", "move(1)", "Right", "right", "The next code or step"),
    *undo_keys("codebooks", "the schemes"),
    *line_end_keys("codebooks"),
    *reach_keys("codebooks", first="g", last="G", page=False),
    _binding("up,k", "pick(-1)", "Up", "up", "The previous scheme"),
    _binding("down,j", "pick(1)", "Down", "down", "The next scheme"),
]  # fmt: skip
