"""The keys of the Quantize panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import panel_binding, undo_keys
from qtui_core.schemes.formats import SCALE_RULES, Family

HELP = """\
What a scheme does to every element of a real tensor.

`v` changes the view: **Maps** of the tensor, its **Outliers**, the **Activations** of its module,
all tensors by **Layers**, and the whole **Model** under each scheme. At first the map shows the
**largest** |error| in each cell on a logarithmic scale, so that a single spike is visible however
large the tensor is. A diamond below the map marks a column with outliers. The cursor is on the
worst element of its cell; Enter shows the bits of that element in the Formats panel.

The panel compares two schemes, **A** and **B**. A scheme is a text such as `int4:group64:asym`,
`nf4:block64:dq` or `e4m3:row`; a key or a click changes each part of it. The *Gaussian* lines are
the errors of the same scheme on normally distributed values of the same shape: a tensor with a much
larger error has outliers, one with a smaller error has a flatter distribution.

`w` goes to the tensor with the lowest SQNR under the active scheme, and then to the next lowest;
`W` goes back. An export writes the screen (SVG), the numbers (JSON) and the cells of the maps
(CSV).

The ticks below the histogram are the levels of the cursor's group.
"""

_binding = partial(panel_binding, "quantize")

# These come first, because the footer has no room for all keys: keys that work only at times.
URGENT_BINDINGS: list[BindingType] = [
    _binding("r", "restart", "Restart", "restart",
             "Start the engine again, or read again", show=True),
    _binding("escape", "stop", "Stop", "stop", "Stop reading the tensor", show=True),
    _binding("escape", "back", "Back", "back", "Leave the field, the picture or the list",
             show=True, priority=True),
]  # fmt: skip
QUANTIZE_BINDINGS: list[BindingType] = [
    # Keys that open a field have priority: Textual then runs their action before it handles the
    # next key of the same packet.
    _binding("slash", "filter", "Filter", "filter", "Filter the tensors by name", show=True,
             priority=True),
    _binding("w", "worst(1)", "Worst", "worst",
             "Next worst tensor under the active scheme"),
    _binding("W", "worst(-1)", "Worst before", "worst_back", "Previous worst tensor"),
    _binding("T", "order", "Order", "order",
             "Order: by model, by name, worst first", show=True),
    _binding("t", "tensors", "Tensor", "tensors", "Pick a tensor by letters of its name",
             show=True, priority=True),
    _binding("f", "formats", "Format", "format", "Pick the format of the scheme", show=True,
             priority=True),
    _binding("right_parenthesis", "turn('granularity', 1)", "Granularity", "granularity",
             "Next granularity (which elements share a scale)", show=True),
    _binding("left_parenthesis", "turn('granularity', -1)", "Granularity back", "granularity_back",
             "Previous granularity"),
    _binding("right_square_bracket", "turn('size', 1)", "Larger", "larger",
             "Larger group or block"),
    _binding("left_square_bracket", "turn('size', -1)", "Smaller", "smaller",
             "Smaller group or block"),
    _binding("a", "turn('symmetry', 1)", "Zero point", "symmetry",
             "Symmetric, or with a zero point"),
    _binding("A", "turn('zero_point', 1)", "Kind of zero point", "zero_point",
             "Zero point: an integer code, or a float"),
    _binding("C", "turn('scale_rule', 1)", "Scale rule", "rule",
             f"Scale rule: {', '.join(SCALE_RULES[Family.INTEGER])}; of mx formats "
             f"{', '.join(SCALE_RULES[Family.MICROSCALING])}"),
    _binding("R", "turn('rounding', 1)", "Rounding", "rounding",
             "Rounding: nearest, stochastic"),
    _binding("D", "turn('double_quantization', 1)", "Double quant", "double_quantization",
             "Double quantization of the scales"),
    _binding("right_curly_bracket", "turn('nested', 1)", "Nested block", "nested",
             "Double quantization: how many scales share a constant"),
    _binding("left_curly_bracket", "turn('nested', -1)", "Nested back", "nested_back",
             "Double quantization: the number of scales before it"),
    _binding("O", "turn('outliers', 1)", "Outlier columns", "outliers",
             "Keep outlier columns in 16 bits; again for a higher threshold"),
    _binding("s", "schemes", "Scheme", "type", "Pick the scheme, or type it as text", show=True,
             priority=True),
    *undo_keys("quantize", "the schemes"),
    _binding("X", "swap", "A/B", "swap", "Work on the other scheme", show=True),
    _binding("S", "source", "Source", "source",
             "Show the weight, or the input or output of its module", show=True),
    _binding("x", "clear_injection", "Remove outlier", "clear_injection",
             "Remove the injected outlier", show=True),
]  # fmt: skip
