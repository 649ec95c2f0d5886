"""The keys of the Hardware panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import panel_binding

HELP = """\
The machine: what its GPUs do now, what they are, and what limits the plan on them.

**GPUs**: every GPU twice a second, and the processes on it. A value that the driver does not tell
is a dash, each by itself.
**Hierarchy**: registers, L1 and shared memory, L2, memory: what each holds and gives, and who says
so: *stated* by the vendor, *derived* from a width it states and the highest clock, *measured*.
**Rates**: operations a second by type as the vendor states them; `m` measures this machine in a
process of its own (the processor, where there is no GPU).
**Roofline**: each operation of the plan at its operations a byte. Under the slope it waits for
memory, under the flat roofs for the units of its type. The dotted slope above is L2; a dotted roof
below the other is what was measured here.
**Operations**: the same as a list. Times are bounds: no step is shorter. Of norms, activations and
rotations only the forward passes are counted.

The plan is the one of the Memory panel. `g` chooses another device.
"""

_binding = partial(panel_binding, "hardware")

HARDWARE_BINDINGS: list[BindingType] = [
    _binding("r", "restart", "Restart", "restart", "Start the estimator again", show=True),
    _binding("v", "view(1)", "View", "view",
             "Next view: GPUs, hierarchy, rates, roofline, operations", show=True),
    _binding("V", "view(-1)", "View back", "view_back", "View before"),
    _binding("up,k", "move(-1)", "Choose", "up", "The operation before", show=True,
             key_display="↑↓"),
    _binding("down,j", "move(1)", "Down", "down", "The next operation"),
    _binding("g", "gpu(1)", "GPU", "gpu", "The next device: of this machine, then the catalogue",
             show=True),
    _binding("G", "gpu(-1)", "GPU back", "gpu_back", "The device before"),
    _binding("m", "measure", "Measure", "measure",
             "Measure products and a copy on this machine", show=True),
    _binding("escape", "stop", "Stop", "stop", "Stop measuring", show=True),
]  # fmt: skip
