"""The layout of the Memory panel at each size of the screen."""

from __future__ import annotations

from textual.app import ComposeResult

from qtui.screen.curve.picture import CurvePicture
from qtui.screen.plan.body import PlanBody
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.text_picture import TextPicture
from qtui.screen.widgets.view_tabs import ViewTabs


class MemoryBody(PlanBody):
    """Shows the main numbers below the curve if the screen is tall."""

    DEFAULT_CSS = """
    MemoryBody {
        #memory-numbers { height: 9; margin: 1 0 0 0; }
        &.-narrow #memory-numbers, &.-short #memory-numbers { display: none; }
        &.-very-tall #memory-numbers { height: 12; }
        &.-text #memory-numbers { display: none; }
        &.-text.-narrow.-message PlanForm { display: block; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__(drawing, tabs, CurvePicture(drawing))
        self.numbers = TextPicture(drawing, id="memory-numbers", focus=False)

    def compose_below(self) -> ComposeResult:
        yield self.numbers

    def focus_picture(self) -> None:
        self.screen.set_focus(self.main)

    def show_message(self, text: str) -> None:
        """Shows a message in place of the picture. The form stays, as changing it may help."""
        super().show_message(text)
        self.add_class("-message")
