"""The keys of the Quantize panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import panel_binding
from qtui_core.schemes.formats import SCALE_RULES, Family

HELP = """\
What a scheme does to every element of a real tensor.

`v` turns the view: **Maps** of the tensor, its **Outliers**, and the **Activations** that flow
through its module. The map first shows the **largest** |error| of each patch of the tensor, on a
logarithmic scale: a single spike stays visible however large the tensor is. A diamond below it
marks a column that holds outliers. The cursor stands on the worst element of its patch; Enter
shows that element's bits in the Formats panel.

Two schemes are compared, **A** and **B**. A scheme is a text such as `int4:group64:asym`,
`nf4:block64:dq` or `e4m3:row`; every part of it is also a knob, by key or by click. The numbers
in the *Gaussian* lines are what the same scheme would lose on a tensor of normal values of the
same shape: a tensor that does much worse has outliers, one that does better is flatter.

`w` goes to the tensor that the active scheme hurts most, again to the next worst, `W` back. `e`
writes the screen as a picture (SVG), the numbers (JSON) and the cells of the maps (CSV) under a
new name each time, and says where.

The ticks below the histogram are the values that the cursor's group can represent.
"""

_binding = partial(panel_binding, "quantize")

# Before all others, because the footer has no room for all: what is there only when it matters,
# and the way to the other views.
URGENT_BINDINGS: list[BindingType] = [
    _binding("r", "restart", "Restart", "restart",
             "Start the engine again, or read again", show=True),
    _binding("escape", "stop", "Stop", "stop", "Stop reading the tensor", show=True),
    _binding("escape", "back", "Back", "back", "Leave the field or the list", show=True),
]  # fmt: skip
QUANTIZE_BINDINGS: list[BindingType] = [
    # What opens a field takes effect before the next key is given to anyone: over a slow line
    # keys arrive together.
    _binding("slash", "filter", "Filter", "filter", "Filter the tensors by name", show=True,
             priority=True),
    _binding("n", "match(1)", "Next match", "next_match", "Next tensor the filter matches"),
    _binding("N", "match(-1)", "Previous match", "previous_match", "Previous match"),
    _binding("w", "worst(1)", "Worst", "worst",
             "Next worst tensor under the active scheme"),
    _binding("W", "worst(-1)", "Worst before", "worst_back", "Worst tensor before"),
    _binding("o", "order", "Order", "order",
             "Order: by model, by name, worst first", show=True),
    _binding("t", "tensors", "Tensors", "tensors", "Go to the list of tensors", show=True),
    _binding("f", "turn('format', 1)", "Format", "format", "Next format", show=True),
    _binding("F", "turn('format', -1)", "Format back", "format_back", "Format before"),
    _binding("g", "turn('granularity', 1)", "Granularity", "granularity",
             "Next granularity (who shares a scale)", show=True),
    _binding("G", "turn('granularity', -1)", "Granularity back", "granularity_back",
             "Granularity before"),
    _binding("right_square_bracket", "turn('size', 1)", "Larger", "larger",
             "Larger group or block"),
    _binding("left_square_bracket", "turn('size', -1)", "Smaller", "smaller",
             "Smaller group or block"),
    _binding("a", "turn('symmetry', 1)", "Zero point", "symmetry",
             "Symmetric, or with a zero point"),
    _binding("A", "turn('zero_point', 1)", "Kind of zero point", "zero_point",
             "Zero point: an integer, or a number of the tensor's unit"),
    _binding("u", "turn('scale_rule', 1)", "Scale rule", "rule",
             f"Scale rule: {', '.join(SCALE_RULES[Family.INTEGER])}; of mx formats "
             f"{', '.join(SCALE_RULES[Family.MICROSCALING])}"),
    _binding("U", "turn('scale_rule', -1)", "Scale rule back", "rule_back", "Scale rule before"),
    _binding("R", "turn('rounding', 1)", "Rounding", "rounding",
             "Rounding: nearest, truncate, stochastic"),
    _binding("d", "turn('double_quantization', 1)", "Double quant", "double_quantization",
             "Double quantization of the scales"),
    _binding("D", "turn('nested', 1)", "Nested block", "nested",
             "How many scales share a constant under double quantization"),
    _binding("O", "turn('outliers', 1)", "Outlier columns", "outliers",
             "Keep columns with outliers in 16 bits, from a higher threshold on"),
    _binding("s", "type_scheme", "Scheme", "type", "Type the scheme as text", show=True,
             priority=True),
    _binding("x", "swap", "A/B", "swap", "Work on the other scheme", show=True),
    _binding("S", "source", "Source", "source",
             "Weight, input or output of its module", show=True),
    _binding("backspace", "clear_injection", "Take outlier out", "clear_injection",
             "Take the injected outlier out again", show=True),
]  # fmt: skip
