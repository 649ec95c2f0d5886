"""The layout of the Train panel at each size of the screen, with its buttons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.strip import Strip

from qtui.screen.plan.body import PlanBody
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui.screen.widgets.line import Line
from qtui.screen.widgets.text_picture import TextPicture
from qtui.screen.widgets.view_tabs import ViewTabs
from qtui.tui.panels.train.views.run_picture import RunPicture
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Control:
    """A button: its key, its label, the panel's action, and whether it works now."""

    key: str
    word: str
    action: str
    enabled: bool = True


class ControlButtons(DrawnLines):
    """Buttons on a line, each with its key."""

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
        """Shows other buttons, or the same in another state."""
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


#: From this width on the gap is shown beside the phases and the loss.
VERY_WIDE = 160
#: Below this width there is no room for the buttons beside the names of the views.
CRAMPED = 98
#: Below this height the levels have one line.
LOW = 14


class TrainBody(PlanBody):
    """Has the buttons on top, and on a tall screen the phases, the gap and the loss below the
    curve."""

    DEFAULT_CSS = """
    TrainBody {
        #plan-top ViewTabs { width: 1fr; }
        #plan-top ControlButtons { width: auto; margin: 0 1 0 0; }
        #train-below { height: 10; margin: 1 0 0 0; }
        #train-phases { width: 52; }
        #train-gap { display: none; width: 46; margin: 0 0 0 2; }
        #train-loss { width: 1fr; margin: 0 0 0 2; }
        &.-narrow #train-below, &.-short #train-below { display: none; }
        &.-very-wide #train-gap { display: block; }
        &.-very-tall #train-below { height: 13; }
        &.-low #plan-levels { height: 1; }
        &.-cramped #plan-top ControlButtons { display: none; }
        &.-text #train-below { display: none; }
    }
    """

    curve: RunPicture

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__(drawing, tabs, RunPicture(drawing))
        self.controls = ControlButtons()
        self.phases = TextPicture(drawing, id="train-phases", focus=False)
        self.gap = TextPicture(drawing, id="train-gap", focus=False)
        self.loss = TextPicture(drawing, id="train-loss", focus=False)

    def compose_top(self) -> ComposeResult:
        yield self.controls

    def compose_below(self) -> ComposeResult:
        with Horizontal(id="train-below"):
            yield self.phases
            yield self.gap
            yield self.loss

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < CRAMPED, "-cramped")
        self.set_class(width >= VERY_WIDE, "-very-wide")
        self.set_class(height < LOW, "-low")
