"""The keys of the Numerics panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import Binding, BindingType

from qtui.screen.panel.keys import panel_binding, reach_keys

HELP = """\
What low precision does to learning: each experiment asks one question, trains or measures on this
machine, and answers in a sentence. The list at the left has the experiments and their cost; below
it are the settings of the chosen one.

{views}

An experiment runs in a process of its own with a low priority, so that the screen stays fast. Every
run is recorded; `o` opens a recording. An export writes the picture (SVG), the whole result (JSON)
and the table (CSV).
"""

_binding = partial(panel_binding, "numerics")

RUN_BINDINGS: list[BindingType] = [
    _binding("r", "run", "Run", "run", "Run the experiment with these settings", show=True),
    _binding("c", "go_on", "Go on", "go_on", "Run the remaining parts of a stopped run", show=True),
    _binding("space", "pause", "Pause", "pause", "Pause the run, or resume it", show=True,
             key_display="Space"),
    _binding("x", "stop", "Stop", "stop", "Stop the run, or go to the end of a recording",
             show=True),
]  # fmt: skip

FORM_BINDINGS: list[BindingType] = [
    _binding("up,k", "move(-1)", "Choose", "up", "The previous experiment, setting or line",
             show=True, key_display="↑↓"),
    _binding("down,j", "move(1)", "Down", "down", "The next one"),
    *reach_keys("numerics"),
    _binding("left,h", "turn(-1)", "Less", "less", "The previous value of the setting",
             show=True, key_display="←→"),
    _binding("right,l", "turn(1)", "More", "more", "The next value of the setting"),
    _binding("enter", "enter", "Type", "enter", "Type the value of the setting", show=True,
             key_display="Enter"),
    _binding("backspace", "usual", "As usual", "usual", "The usual value of the setting"),
    _binding("o", "open", "Open", "open", "Pick a recording of an experiment, or type its path",
             priority=True),
    _binding("escape", "back", "Back", "back", "Leave the field, or go back to the list",
             show=True, priority=True),
]  # fmt: skip

PICTURE_KEYS: tuple[Binding, ...] = (
    _binding("m", "picture(1)", "Next picture", "picture", "The next picture", show=True),
    _binding("M", "picture(-1)", "Picture back", "picture_back", "The previous picture"),
    _binding("b", "behind", "Behind", "behind", "Draw another run behind it, or none", show=True),
    _binding("S", "scales", "Scales", "scales", "Where scales lie, or the numbers", show=True),
    _binding("full_stop", "scale(1)", "Scale up", "scale_up", "Double the values", show=True,
             key_display="."),
    _binding("comma", "scale(-1)", "Scale down", "scale_down", "Halve the values",
             key_display=","),
)  # fmt: skip
