"""The keys of the Train panel and its help."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from qtui.screen.panel.keys import panel_binding, reach_keys, undo_keys

HELP = """\
Training steps in a process of their own, compared with the estimate while they run.

The form has the plan of the Memory panel. `r` runs it, `Space` pauses the run after the current
step or resumes it, `]` runs one step, `x` stops the run and frees the device. The plan cannot be
changed while it runs.

{views}
Every run is recorded. `o` opens a recording, and `qtui replay FILE` starts with one. A recording
plays at 1, 4 or 16 times its own speed, and `[` and `]` jump from step to step.
"""

#: What can be typed besides values of the plan -> the label of the field.
ASKED = {
    "steps": "steps (empty: run until stopped)",
    "data": "a text file to learn from (empty takes the built-in text)",
    "text": "the text that adapters are compared on",
    "jump": "to step",
}

_binding = partial(panel_binding, "train")

TRAIN_BINDINGS: list[BindingType] = [
    _binding("escape", "back", "Back", "back", "Leave the field, or go back to the form",
             show=True, priority=True),
    _binding("r", "run", "Run", "run", "Run the plan, or play the recording from its start",
             show=True),
    _binding("space", "pause", "Pause", "pause", "Pause the run, or resume it", show=True,
             key_display="Space"),
    _binding("right_square_bracket", "step", "Step", "step", "Run one step, then pause",
             show=True, key_display="]"),
    _binding("x", "stop", "Stop", "stop", "Stop the run and free the device, or close the "
             "recording", show=True),
]  # fmt: skip
LATER_BINDINGS: list[BindingType] = [
    _binding("F", "floor", "Floor", "floor",
             "Start the picture at zero, or at the bytes that are always there"),
    _binding("full_stop", "speed(1)", "Faster", "faster", "Play faster: 1, 4, 16 times",
             show=True, key_display="."),
    _binding("comma", "speed(-1)", "Slower", "slower", "Play slower", key_display=","),
    _binding("right_square_bracket", "jump(1)", "Next step", "next_step",
             "Jump to the next step of the recording", show=True, key_display="]"),
    _binding("left_square_bracket", "jump(-1)", "Step before", "previous_step",
             "Jump to the previous step", key_display="["),
    _binding("colon", "ask_jump", "Jump", "jump", "Jump to a step of the recording by its number"),
    _binding("left,h", "turn(-1)", "Change", "less", "The previous value", show=True,
             key_display="←→"),
    _binding("right,l", "turn(1)", "More", "more", "The next value"),
    _binding("up,k", "move(-1)", "Up", "up", "The previous line"),
    _binding("down,j", "move(1)", "Down", "down", "The next line"),
    *reach_keys("train"),
    _binding("enter", "enter", "Type", "enter", "Type a value", show=True, key_display="Enter"),
    _binding("o", "open", "Open", "open", "Pick a recording, or type its path", show=True,
             priority=True),
    _binding("colon", "ask_steps", "Steps", "steps", "How many steps to run", show=True),
    _binding("i", "ask_data", "Data", "data", "A text file to learn from"),
    _binding("I", "ask_text", "Text", "text", "The text that adapters are compared on"),
    _binding("d", "device", "GPU", "gpu", "Pick the GPU to estimate for", show=True,
             priority=True),
    _binding("B", "largest", "Largest batch", "largest",
             "Take the largest batch that fits, if the plan does not fit", show=True),
    *undo_keys("train", "the plan"),
    _binding("backspace", "usual", "As usual", "usual",
             "Set the usual value of the method"),
]  # fmt: skip
