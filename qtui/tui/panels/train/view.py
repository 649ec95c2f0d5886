"""The base of the views of the Train panel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qtui.screen.panel.keys import key_of
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
        self.show_curve(shown)

    def show_curve(self, shown: RunShown) -> None:
        """Draws the curve, where it stands below the text."""
        if self.panel.body.has_both:
            self.panel.painter.curve()

    def meaning(self, shown: RunShown) -> str:
        return how_it_goes(shown, self.panel.drawing.glyphs)

    def copy_text(self) -> str:
        return self.panel.body.picture.text

    def nothing(self, shown: RunShown, text: str, canvas: Canvas) -> list[TextLine]:
        """Why there is nothing to show yet, and what to do."""
        begun = shown.state.header is not None
        words = why_nothing(shown.state, text) if begun else how_to_begin(self.panel)
        return paragraphs([words], canvas.width)


def how_to_begin(panel: TrainPanel) -> str:
    """The keys that bring a run."""
    run, opens = key_of(panel, "train.run"), key_of(panel, "train.open")
    return f"{run} runs the plan, {opens} opens a recording."


def why_nothing(state: RunState, text: str) -> str:
    """Why there is nothing to show; `text` unless the estimate is what is missing."""
    if state.header is not None and state.header.predicted is None and state.header.why_not:
        return state.header.why_not
    return text
