"""The keys of the Model view and its help."""

from __future__ import annotations

from textual.binding import Binding

from qtui.screen.panel.keys import MANY

HELP = """\
## Model

What the schemes do to the whole model: the original and each scheme read the same windows of a
text, and `r` starts that. **KL** is the divergence of a scheme's distribution of the next token
from the original's, in nats a token; *±* is the standard error of its mean, by windows. The last
column is the share of tokens whose most likely successor stays. `qtui eval` computes the same.

Rows arrive scheme by scheme, and figures become better with every batch of windows. `Esc` stops
and keeps what is done; `r` goes on from there, and reads again only what is new. A filled
circle marks the **frontier**: no other scheme has both fewer bits and less divergence. The picture
draws KL against bits, with the frontier as a line; `m` shows it alone.

A and B are always in the list. `b` adds schemes beside them, `x` takes out the one under the
cursor; `+` and `-` change the number of windows, `i` reads a text file, `d` runs the model on the
CPU or on a GPU.
"""

KEYS: tuple[Binding, ...] = (
    Binding("r", "evaluate", "Evaluate", id="quantize.evaluate",
            tooltip="Let the original and the schemes read the text, or go on"),
    Binding("m", "picture", "Picture", id="quantize.frontier",
            tooltip="Show the picture alone, or the table"),
    Binding("b", "type_text('schemes')", "Add", id="quantize.add_schemes", priority=True,
            tooltip="Add schemes to the list"),
    Binding("x", "remove", "Take out", show=False, id="quantize.remove_scheme",
            tooltip="Take the scheme under the cursor out of the list"),
    Binding("plus", "windows(2)", "More windows", show=False,
            id="quantize.more_windows", tooltip="Read twice as many windows"),
    Binding("minus", "windows(0.5)", "Fewer windows", show=False,
            id="quantize.fewer_windows", tooltip="Read half as many windows"),
    Binding("i", "type_text('text')", "File", id="quantize.evaluated_text", priority=True,
            tooltip="Read another text file"),
    Binding("d", "device", "CPU or GPU", show=False, id="quantize.evaluation_device",
            tooltip="Run on the CPU, or on a GPU"),
    Binding("up,k", "move(-1)", "Up", show=False, id="quantize.scheme_up",
            tooltip="The scheme above"),
    Binding("down,j", "move(1)", "Down", show=False, id="quantize.scheme_down",
            tooltip="The scheme below"),
    Binding("g,home", f"move({-MANY})", "First", show=False, id="quantize.first_scheme",
            tooltip="The first scheme"),
    Binding("G,end", f"move({MANY})", "Last", show=False, id="quantize.last_scheme",
            tooltip="The last scheme"),
)  # fmt: skip
