"""How panels with a form are laid out."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Label

from qtui.screen.curve.picture import CurvePicture
from qtui.screen.plan.form import PlanForm
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.field import TypingField
from qtui.screen.widgets.task_title import TaskTitle
from qtui.screen.widgets.text_picture import Draw, TextPicture, centred
from qtui.screen.widgets.view_tabs import ViewTabs

WIDE = 110
#: The lines above the picture of a tall screen, and the columns beside it.
ABOVE, BESIDE = 6, 35
#: From this height on a curve may stand below a text, and its least height there.
TALL, LEAST_CURVE = 30, 12
SHORT = 26
VERY_TALL = 40


class FormBody(Container):
    """Has the tabs, the form, a title, and a line for typing a value, which is shown only while one
    is typed. A subclass arranges them."""

    DEFAULT_CSS = """
    FormBody {
        #plan-typing { display: none; height: 1; margin: 0 0 1 0; padding: 0 1; }
        #plan-what { width: auto; padding: 0 1 0 0; color: $quiet; }
        #plan-field { width: 1fr; background: $panel; }
        &.-typing #plan-typing { display: block; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__()
        self.tabs = tabs
        self.what = Label("", id="plan-what", markup=False)
        self.field = TypingField(self, id="plan-field")
        self.form = PlanForm(drawing)
        self.title_line = TaskTitle(drawing)

    def compose_typing(self) -> ComposeResult:
        """The line for typing."""
        with Horizontal(id="plan-typing"):
            yield self.what
            yield self.field

    def focus_form(self) -> None:
        """Moves the focus to the form, or to what is shown in its place."""
        self.screen.set_focus(self.form)

    @property
    def typing(self) -> bool:
        """Whether keys are text for the field."""
        return self.field.takes_keys

    def start_typing(self, what: str, text: str) -> None:
        self.what.update(what)
        self.field.open(text)

    def stop_typing(self) -> None:
        self.field.close()
        self.focus_form()

    @on(Input.Blurred, "#plan-field")
    def _left(self) -> None:
        # If another window of the desktop took the focus, typing continues afterwards.
        if self.app.app_focus:
            self.field.close()


class PlanBody(FormBody):
    """The tabs on top; below them the form at the left, and at its right a title, three lines, and
    a curve or a text. On a narrow screen texts take the room of the form. A subclass adds to the
    top and below the picture."""

    DEFAULT_CSS = """
    PlanBody {
        #plan-top { height: 1; margin: 0 0 1 0; }
        &.-typing #plan-top { display: none; }
        #plan-main { height: 1fr; }
        PlanForm { width: 34; padding: 0 1 0 1; }
        #plan-centre { width: 1fr; padding: 0 1 0 0; }
        TaskTitle { padding: 0; }
        #plan-levels { height: 3; }
        #plan-picture, CurvePicture { height: 1fr; }
        &.-narrow PlanForm { width: 30; padding: 0 1 0 0; }
        &.-short #plan-top, &.-short #plan-typing { margin: 0; }
        &.-curve #plan-picture { display: none; }
        &.-text CurvePicture { display: none; }
        &.-text.-both CurvePicture { display: block; margin: 1 0 0 0; }
        &.-text.-narrow PlanForm { display: none; }
        &.-text.-narrow #plan-centre { padding: 0 1; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs, curve: CurvePicture) -> None:
        super().__init__(drawing, tabs)
        self.add_class("-curve")
        self.levels = TextPicture(drawing, id="plan-levels", focus=False)
        self.curve = curve
        self.picture = TextPicture(drawing, id="plan-picture")

    def compose(self) -> ComposeResult:
        with Horizontal(id="plan-top"):
            yield self.tabs
            yield from self.compose_top()
        yield from self.compose_typing()
        with Horizontal(id="plan-main"):
            yield self.form
            with Vertical(id="plan-centre"):
                yield self.title_line
                yield self.levels
                yield self.curve
                yield self.picture
                yield from self.compose_below()

    def compose_top(self) -> ComposeResult:
        """What stands beside the tabs."""
        yield from ()

    def compose_below(self) -> ComposeResult:
        """What stands below the picture."""
        yield from ()

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < WIDE, "-narrow")
        self.set_class(height < SHORT, "-short")
        self.set_class(height >= VERY_TALL, "-very-tall")
        self._share()
        self.screen.refresh_bindings()  # keys of the form are there while it is

    # Where the focus is

    @property
    def has_form(self) -> bool:
        """Whether there is room for the form beside the picture."""
        text = self.has_class("-text") and not self.has_class("-message")
        return not (self.has_class("-narrow") and text)

    def focus_form(self) -> None:
        self.screen.set_focus(self.form if self.has_form else self.main)

    @property
    def has_both(self) -> bool:
        """Whether the curve stands below a text."""
        return self.has_class("-both")

    @property
    def main(self) -> Widget:
        """The picture of the view that is shown."""
        return self.curve if self.has_class("-curve") else self.picture

    # What is shown

    def show_curve(self) -> None:
        """The curve stands in the middle; `curve` draws it."""
        self.remove_class("-text", "-message", "-told")
        self.add_class("-curve")

    def show_text(self, draw: Draw) -> None:
        """A picture of texts stands there."""
        self.remove_class("-curve", "-message", "-told")
        self.add_class("-text")
        self.picture.show(draw)
        self._share()

    def show_message(self, text: str) -> None:
        """A message in place of the picture."""
        self.show_text(centred(text))
        self.add_class("-told")
        self._share()

    def _share(self) -> None:
        """On a tall screen a text has the lines that it needs, and the curve stands below it."""
        room, wide = self.size.height - ABOVE, self.size.width - BESIDE
        lines = self.picture.lines_of(wide, room) if self.size.height >= TALL else room
        both = room - lines > LEAST_CURVE and not self.has_class("-told")
        self.set_class(both and self.has_class("-text"), "-both")
        self.picture.styles.height = max(1, lines) if both else "1fr"
