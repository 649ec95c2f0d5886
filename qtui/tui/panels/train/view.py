"""The base of the views of the Train panel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qtui.screen.panel.view import View
from qtui.screen.widgets.text_picture import Canvas, TextLine, paragraphs
from qtui.tui.panels.train.sentences import how_it_goes
from qtui.tui.panels.train.shown import RunShown
from qtui_core.live.state import RunState

if TYPE_CHECKING:
    from qtui.tui.panels.train.panel import TrainPanel


class TrainView(View[RunShown]):
    """A view that shows lines of text in place of the picture, once a step is over."""

    panel: TrainPanel

    def show(self, shown: RunShown) -> None:
        """Draws the view."""
        self.panel.body.show_text(partial(self.draw, shown))

    def meaning(self, shown: RunShown) -> str:
        return how_it_goes(shown, self.panel.drawing.glyphs)

    def copy_text(self) -> str:
        return self.panel.body.picture.text


def nothing(state: RunState, text: str, canvas: Canvas) -> list[TextLine]:
    """A text that says why there is nothing to show yet, and what to do."""
    if state.header is None:
        text = "r runs the plan, o opens a recording."
    elif state.header.predicted is None and state.header.why_not:
        text = state.header.why_not
    return paragraphs([text], canvas.width)
