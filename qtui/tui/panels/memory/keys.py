"""The keys of the Memory panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import panel_binding

HELP = """\
The memory of one training step, predicted from config.json alone, operation by operation.

The form holds the plan: `up` and `down` choose a line, `left` and `right` its value, `Enter` types
one. Values that were not set are as usual for the method. Dots in the picture are the curve before
the last change.

{views}In the last four a click chooses a line or a cell, and two take it as `Enter` does.

Four levels are kept apart: *tensors* that are alive, *allocated* blocks, *reserved* segments of the
allocator, and the *process* with the context of CUDA. The first answer is of tensors; the rest
follows.
"""

_binding = partial(panel_binding, "memory")

MEMORY_BINDINGS: list[BindingType] = [
    _binding("r", "restart", "Restart", "restart", "Start the estimator again, or open the model "
             "again", show=True),
    _binding("escape", "back", "Back", "back",
             "Leave the field, stop a trace, or go back to the form", show=True),
    _binding("left,h", "step(-1)", "Change", "less", "The value before, or to the left in the map",
             show=True, key_display="←→"),
    _binding("right,l", "step(1)", "More", "more", "The next value, or to the right in the map"),
    _binding("plus,equals_sign", "turn(1)", "Up", "up_value",
             "The next value of the chosen line, whatever is shown", key_display="+"),
    _binding("minus", "turn(-1)", "Down", "down_value", "The value before it", key_display="-"),
    _binding("up,k", "move(-1)", "Up", "up", "The line before"),
    _binding("down,j", "move(1)", "Down", "down", "The next line"),
    _binding("enter", "enter", "Type", "enter",
             "Type a value, make the chosen change, choose the GPU, or open the case", show=True,
             key_display="Enter"),
]  # fmt: skip
LATER_BINDINGS: list[BindingType] = [
    _binding("g", "gpu(1)", "GPU", "gpu", "The next larger GPU", show=True),
    _binding("G", "gpu(-1)", "Smaller GPU", "gpu_back", "The next smaller GPU"),
    _binding("u", "undo", "Undo", "undo", "Take the last change back", show=True),
    _binding("backspace", "usual", "As usual", "usual",
             "The value that is usual for the method"),
    _binding("o", "own", "Own model", "own", "Leave the worked case: back to the model",
             show=True),
    _binding("t", "trace", "Trace", "trace",
             "Run the classes of transformers on tensors without values instead, or stop that",
             show=True),
]  # fmt: skip
