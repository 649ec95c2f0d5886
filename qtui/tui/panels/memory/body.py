"""How the Memory panel is laid out at each size."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from qtui.screen.curve.picture import CurvePicture
from qtui.screen.plan.body import SHORT, VERY_TALL, WIDE, PlanBody
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.text_picture import Draw, TextPicture, centred
from qtui.screen.widgets.view_tabs import ViewTabs


class MemoryBody(PlanBody):
    """The form at the left; at its right the levels, the picture, and on a tall screen the numbers
    behind it. On a narrow screen texts take the room of the form."""

    DEFAULT_CSS = """
    MemoryBody {
        #memory-top { height: 1; margin: 0 0 1 0; }
        &.-typing #memory-top { display: none; }
        #memory-main { height: 1fr; }
        PlanForm { width: 34; padding: 0 1 0 1; }
        #memory-centre { width: 1fr; padding: 0 1 0 0; }
        TaskTitle { padding: 0; }
        #memory-levels { height: 3; }
        #memory-picture, CurvePicture { height: 1fr; }
        #memory-numbers { height: 9; margin: 1 0 0 0; }
        &.-narrow PlanForm { width: 30; padding: 0 1 0 0; }
        &.-narrow #memory-numbers, &.-short #memory-numbers { display: none; }
        &.-very-tall #memory-numbers { height: 12; }
        &.-short #memory-top, &.-short #plan-typing { margin: 0; }
        &.-curve #memory-picture { display: none; }
        &.-text CurvePicture, &.-text #memory-numbers { display: none; }
        &.-text.-narrow PlanForm { display: none; }
        &.-text.-narrow #memory-centre { padding: 0 1; }
        &.-text.-narrow.-message PlanForm { display: block; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__(drawing)
        self.add_class("-curve")
        self.tabs = tabs
        self.levels = TextPicture(drawing)
        self.levels.id = "memory-levels"
        self.levels.can_focus = False
        self.curve = CurvePicture(drawing)
        self.picture = TextPicture(drawing)
        self.picture.id = "memory-picture"
        self.numbers = TextPicture(drawing)
        self.numbers.id = "memory-numbers"
        self.numbers.can_focus = False

    def compose(self) -> ComposeResult:
        with Horizontal(id="memory-top"):
            yield self.tabs
        yield from self.compose_typing()
        with Horizontal(id="memory-main"):
            yield self.form
            with Vertical(id="memory-centre"):
                yield self.title_line
                yield self.levels
                yield self.curve
                yield self.picture
                yield self.numbers

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < WIDE, "-narrow")
        self.set_class(height < SHORT, "-short")
        self.set_class(height >= VERY_TALL, "-very-tall")

    # Where the focus is

    @property
    def has_form(self) -> bool:
        """Whether there is room for the form beside what is shown."""
        text = self.has_class("-text") and not self.has_class("-message")
        return not (self.has_class("-narrow") and text)

    def focus_form(self) -> None:
        self.screen.set_focus(self.form if self.has_form else self.main)

    @property
    def main(self) -> Widget:
        """The picture of the view that is shown."""
        return self.curve if self.has_class("-curve") else self.picture

    def focus_picture(self) -> None:
        self.screen.set_focus(self.main)

    # What is shown

    def show_curve(self) -> None:
        """The curve stands in the middle; `curve` draws it."""
        self.remove_class("-text", "-message")
        self.add_class("-curve")

    def show_text(self, draw: Draw) -> None:
        """A picture of texts stands there."""
        self.remove_class("-curve", "-message")
        self.add_class("-text")
        self.picture.show(draw)

    def show_message(self, text: str) -> None:
        """A message in place of the picture; the form stays, which may be the way out."""
        self.show_text(centred(text))
        self.add_class("-message")
