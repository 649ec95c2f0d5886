"""The keys of the Memory panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import line_end_keys, panel_binding, reach_keys, undo_keys

HELP = """\
The memory of one training step, predicted from config.json alone, operation by operation.

The form has the plan: `up` and `down` choose a line, `left` and `right` change its value, `Enter`
types one. Options that you do not set have the usual value of the method. Dots in the picture are
the curve before the last change.

{views}In the last four views a click chooses a line or a cell, and a double click acts like
`Enter`.

Memory has four levels: live *tensors*, *allocated* blocks, *reserved* segments of the allocator,
and the *process* with its CUDA context. The tensors are estimated first; the other levels follow.
"""

_binding = partial(panel_binding, "memory")

MEMORY_BINDINGS: list[BindingType] = [
    _binding("r", "restart", "Restart", "restart", "Start the estimator again, or open the model "
             "again", show=True),
    _binding("escape", "back", "Back", "back",
             "Leave the field, stop a trace, or go back to the form", show=True, priority=True),
    _binding("left,h", "step(-1)", "Change", "less", "The previous value, or left in the map",
             show=True, key_display="←→"),
    _binding("right,l", "step(1)", "More", "more", "The next value, or right in the map"),
    _binding("plus", "turn(1)", "Up", "up_value",
             "The next value of the form's line, in any view", key_display="+"),
    _binding("minus", "turn(-1)", "Down", "down_value", "Its previous value", key_display="-"),
    _binding("up,k", "move(-1)", "Up", "up", "The previous line"),
    _binding("down,j", "move(1)", "Down", "down", "The next line"),
    _binding("enter", "enter", "Type", "enter",
             "Type a value, make the chosen change, choose the GPU, or open the case", show=True,
             key_display="Enter"),
]  # fmt: skip
LATER_BINDINGS: list[BindingType] = [
    *line_end_keys("memory"),
    *reach_keys("memory"),
    _binding("d", "device", "GPU", "gpu", "Pick the GPU to estimate for", show=True,
             priority=True),
    _binding("B", "largest", "Largest batch", "largest", "Take the largest batch that fits the GPU",
             show=True),
    *undo_keys("memory", "the plan"),
    _binding("backspace", "usual", "As usual", "usual",
             "Set the usual value of the method"),
    _binding("o", "cases", "Case", "case", "Pick a worked case to open in place of the model",
             priority=True),
    _binding("x", "own", "Own model", "own", "Close the worked case and go back to the model",
             show=True),
    _binding("r", "trace", "Trace", "trace",
             "Trace the transformers classes instead of the built-in shape",
             show=True),
]  # fmt: skip
