"""How the Train panel is laid out at each size, with its buttons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from qtui.screen.plan.body import SHORT, VERY_TALL, WIDE, PlanBody
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn import DrawnLines
from qtui.screen.widgets.line import Line
from qtui.screen.widgets.text_picture import Draw, TextPicture, centred
from qtui.screen.widgets.view_tabs import ViewTabs
from qtui.tui.panels.train.views.loss_picture import LossPicture
from qtui.tui.panels.train.views.run_picture import RunPicture
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Control:
    """A button: its key, its word, the action of the panel, whether it does anything now."""

    key: str
    word: str
    action: str
    enabled: bool = True


class ControlButtons(DrawnLines):
    """Buttons on a line, their keys before them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "controls--key", "controls--word", "controls--off",
    }  # fmt: skip
    DEFAULT_CSS = """
    ControlButtons {
        height: 1;
        & > .controls--key { color: $primary; background: $panel; text-style: bold; }
        & > .controls--word { color: $foreground; background: $panel; }
        & > .controls--off { color: $faint; background: $panel; }
        &:ansi > .controls--off { text-style: dim; }
        &:nocolor > .controls--off { text-style: dim; }
    }
    """

    class Pressed(Message):
        """A button was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self) -> None:
        super().__init__()
        self._controls: tuple[Control, ...] = ()

    def show(self, controls: Sequence[Control]) -> None:
        """Other buttons, or the same in another state."""
        if tuple(controls) != self._controls:
            width = self._width
            self._controls = tuple(controls)
            self.refresh(layout=self._width != width)

    @property
    def _width(self) -> int:
        return sum(_width(control) + 1 for control in self._controls)

    def get_content_width(self, container: object, viewport: object) -> int:
        return self._width

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.base_style)
        style = {
            name: self.get_component_rich_style(f"controls--{name}", partial=True)
            for name in ("key", "word", "off")
        }
        at = 0
        for control in self._controls:
            word = style["word" if control.enabled else "off"]
            line.put(at, f" {control.key} {control.word} ", word)
            if control.enabled:
                line.put(at + 1, control.key, style["key"])
            at += _width(control) + 1
        return line.strip()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        offset = event.get_content_offset(self)
        at = 0
        for control in self._controls:
            if offset is not None and at <= offset.x < at + _width(control) and control.enabled:
                self.post_message(self.Pressed(control.action))
            at += _width(control) + 1


def _width(control: Control) -> int:
    return len(control.key) + len(control.word) + 3


#: From here on the gap stands beside the phases and the loss.
VERY_WIDE = 160
#: Below this width there is room for the names of the views or for the buttons.
CRAMPED = 98
#: Below this height one line says how it goes.
LOW = 14


class TrainBody(PlanBody):
    """The buttons on top; the form at the left; at its right how it goes, the picture, and on a
    tall screen the phases and the loss. On a narrow screen texts take the room of the form."""

    DEFAULT_CSS = """
    TrainBody {
        #train-top { height: 1; margin: 0 0 1 0; }
        #train-top ViewTabs { width: 1fr; }
        #train-top ControlButtons { width: auto; margin: 0 1 0 0; }
        &.-typing #train-top { display: none; }
        #train-main { height: 1fr; }
        PlanForm { width: 34; padding: 0 1 0 1; }
        #train-centre { width: 1fr; padding: 0 1 0 0; }
        TaskTitle { padding: 0; }
        #train-levels { height: 3; }
        #train-picture, RunPicture { height: 1fr; }
        #train-below { height: 10; margin: 1 0 0 0; }
        #train-phases { width: 52; }
        #train-below LossPicture { width: 1fr; margin: 0 0 0 2; }
        #train-gap { display: none; width: 46; margin: 0 0 0 2; }
        #train-loss { height: 1fr; }
        &.-narrow PlanForm { width: 30; padding: 0 1 0 0; }
        &.-narrow #train-below, &.-short #train-below { display: none; }
        &.-very-wide #train-gap { display: block; }
        &.-very-tall #train-below { height: 13; }
        &.-short #train-top, &.-short #plan-typing { margin: 0; }
        &.-low #train-levels { height: 1; }
        &.-cramped #train-top ControlButtons { display: none; }
        &.-curve #train-picture, &.-curve #train-loss { display: none; }
        &.-text RunPicture, &.-text #train-loss, &.-text #train-below { display: none; }
        &.-loss RunPicture, &.-loss #train-picture, &.-loss #train-below { display: none; }
        &.-text.-narrow PlanForm, &.-loss.-narrow PlanForm { display: none; }
        &.-text.-narrow #train-centre, &.-loss.-narrow #train-centre { padding: 0 1; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__(drawing)
        self.add_class("-curve")
        self.tabs = tabs
        self.controls = ControlButtons()
        self.levels = _text(drawing, "train-levels")
        self.curve = RunPicture(drawing)
        self.picture = _text(drawing, "train-picture", focus=True)
        self.phases = _text(drawing, "train-phases")
        self.gap = _text(drawing, "train-gap")
        self.small_loss = LossPicture(drawing)
        self.loss = LossPicture(drawing)
        self.loss.id, self.loss.can_focus = "train-loss", True

    def compose(self) -> ComposeResult:
        with Horizontal(id="train-top"):
            yield self.tabs
            yield self.controls
        yield from self.compose_typing()
        with Horizontal(id="train-main"):
            yield self.form
            with Vertical(id="train-centre"):
                yield self.title_line
                yield self.levels
                yield self.curve
                yield self.picture
                yield self.loss
                with Horizontal(id="train-below"):
                    yield self.phases
                    yield self.gap
                    yield self.small_loss

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < CRAMPED, "-cramped")
        self.set_class(width < WIDE, "-narrow")
        self.set_class(width >= VERY_WIDE, "-very-wide")
        self.set_class(height < LOW, "-low")
        self.set_class(height < SHORT, "-short")
        self.set_class(height >= VERY_TALL, "-very-tall")

    @property
    def has_form(self) -> bool:
        return self.has_class("-curve") or not self.has_class("-narrow")

    def focus_form(self) -> None:
        self.screen.set_focus(self.form if self.has_form else self.main)

    @property
    def main(self) -> Widget:
        """The picture of the view that is shown."""
        if self.has_class("-loss"):
            return self.loss
        return self.curve if self.has_class("-curve") else self.picture

    # What is shown

    def show_curve(self) -> None:
        """The curves stand in the middle; `curve` draws them."""
        self._only("-curve")

    def show_loss(self) -> None:
        """The loss stands there."""
        self._only("-loss")

    def show_text(self, draw: Draw) -> None:
        """A picture of texts stands there."""
        self._only("-text")
        self.picture.show(draw)

    def show_message(self, text: str) -> None:
        """A message in place of the picture."""
        self.show_text(centred(text))

    def _only(self, name: str) -> None:
        if not self.has_class(name):
            self.remove_class("-curve", "-text", "-loss")
            self.add_class(name)


def _text(drawing: Drawing, id: str, *, focus: bool = False) -> TextPicture:
    picture = TextPicture(drawing)
    picture.id, picture.can_focus = id, focus
    return picture
