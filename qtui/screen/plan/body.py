"""What the bodies of panels with a plan share: the form, and a field to type into."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.widgets import Input, Label

from qtui.screen.plan.form import PlanForm
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.field import Field
from qtui.screen.widgets.task_title import TaskTitle

WIDE = 110
SHORT = 26
VERY_TALL = 40


class PlanBody(Container):
    """Has the form, a title, and a line for typing a value, which is shown only while one is typed.
    A subclass arranges them."""

    DEFAULT_CSS = """
    PlanBody {
        #plan-typing { display: none; height: 1; margin: 0 0 1 0; padding: 0 1; }
        #plan-what { width: auto; padding: 0 1 0 0; color: $quiet; }
        #plan-field { width: 1fr; background: $panel; }
        &.-typing #plan-typing { display: block; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.drawing = drawing
        self.what = Label("", id="plan-what", markup=False)
        self.field = Field(compact=True, select_on_focus=True, id="plan-field")
        self.form = PlanForm(drawing)
        self.title_line = TaskTitle(drawing)

    def compose_typing(self) -> ComposeResult:
        """The line for typing."""
        with Horizontal(id="plan-typing"):
            yield self.what
            yield self.field

    @property
    def has_form(self) -> bool:
        """Whether there is room for the form beside the picture."""
        return True

    def focus_form(self) -> None:
        """Moves the focus to the form, or to what is shown in its place."""
        self.screen.set_focus(self.form)

    @property
    def typing(self) -> bool:
        """Whether keys are text for the field."""
        return self.field.has_focus

    def start_typing(self, what: str, text: str) -> None:
        self.add_class("-typing")
        self.what.update(what)
        self.field.value = text
        self.screen.set_focus(self.field)

    def stop_typing(self) -> None:
        self.remove_class("-typing")
        self.focus_form()

    @on(Input.Blurred, "#plan-field")
    def _left(self) -> None:
        # If another window of the desktop took the focus, typing continues afterwards.
        if self.app.app_focus:
            self.remove_class("-typing")
