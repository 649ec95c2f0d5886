"""The keys of the Hardware panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import panel_binding, reach_keys

HELP = """\
The GPUs of this machine: what they do now, how fast they are, and what limits the plan on them.

{views}
The plan is the one of the Memory panel. `d` chooses another device.
"""

_binding = partial(panel_binding, "hardware")

URGENT_BINDINGS: list[BindingType] = [
    _binding("r", "restart", "Restart", "restart", "Start the estimator again", show=True),
]
HARDWARE_BINDINGS: list[BindingType] = [
    _binding("up,k", "move(-1)", "Choose", "up", "The previous operation", show=True,
             key_display="↑↓"),
    _binding("down,j", "move(1)", "Down", "down", "The next operation"),
    *reach_keys("hardware"),
    _binding("d", "device", "GPU", "gpu", "Pick a device, of this machine or of the catalogue",
             show=True, priority=True),
    _binding("r", "measure", "Measure", "measure",
             "Measure matrix products and a copy on this machine", show=True),
    _binding("escape", "stop", "Stop", "stop", "Stop measuring", show=True),
]  # fmt: skip
