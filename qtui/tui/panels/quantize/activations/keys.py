"""The keys of the Activations view and its help."""

from __future__ import annotations

from textual.binding import Binding

HELP = """\
## Activations

The model reads a text, and qtui captures the input and output of the chosen weight's module: `r`
reads the built-in text, `I` a prompt, `i` a file. The first half of the text is for
**calibration**, the second is **held out**.

*Dynamic* scales come from the values themselves, per token or per tensor. *Static* ranges are fixed
on the calibration text: from the smallest to the largest value, or without a share of the elements.
*unseen* is the SQNR on held-out text, *lost* the drop from the calibration text, *clipped* the
share of held-out values outside the range.

The lower table is the error of the layer's **output**: rows are weights, columns inputs, each as
stored or under scheme A or B. `S` shows the input or the output in the whole panel.
"""

ACTIVATIONS_KEYS: tuple[Binding, ...] = (
    Binding("r", "capture", "Capture", show=True, id="quantize.capture",
            tooltip="Let the model read the built-in text"),
    Binding("I", "type_text('prompt')", "Prompt", show=True, id="quantize.prompt",
            tooltip="Let the model read a prompt", priority=True),
    Binding("i", "type_text('file')", "File", show=True, id="quantize.text_file",
            tooltip="Let the model read a text file", priority=True),
)  # fmt: skip
