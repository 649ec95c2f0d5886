"""The loss over the steps."""

from __future__ import annotations

import math

from qtui.tui.panels.train.sentences import loss_words, progress
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui_core.live.state import RunState


class LossView(TrainView):
    """The loss, drawn by the picture of the body."""

    TITLE = "Loss"
    HELP = """\
**Loss**: over the steps.
"""

    def show(self, shown: RunShown) -> None:
        self.panel.body.show_loss()
        self.panel.body.loss.show_run(shown.state)

    def meaning(self, shown: RunShown) -> str:
        state = shown.state
        return " ".join(filter(None, (progress(shown), loss_words(state), _learns(state))))

    def copy_text(self) -> str:
        return self.panel.body.loss.text


def _learns(state: RunState) -> str:
    """What to make of the loss."""
    known = [loss for loss in state.losses if loss is not None]
    if len(known) < 2 or not all(map(math.isfinite, known)):
        return ""
    if known[-1] < known[0]:
        return "It learns; a real run saves what it learned, this one measures."
    if not state.over:
        return ""
    return "It does not learn yet: n takes more steps, --data another text."
