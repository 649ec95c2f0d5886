"""How the Memory panel is laid out at each size."""

from __future__ import annotations

from textual.app import ComposeResult

from qtui.screen.curve.picture import CurvePicture
from qtui.screen.plan.body import PlanBody
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.text_picture import TextPicture
from qtui.screen.widgets.view_tabs import ViewTabs


class MemoryBody(PlanBody):
    """On a tall screen the numbers behind the curve stand below it."""

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
        """The form stays, which may be the way out."""
        super().show_message(text)
        self.add_class("-message")
