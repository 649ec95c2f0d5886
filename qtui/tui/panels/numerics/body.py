"""The layout of the Numerics panel: experiments and settings at the left, views at the right."""

from __future__ import annotations

from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from qtui.screen.plan.body import SHORT, FormBody
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.text_picture import TextPicture
from qtui.screen.widgets.view_tabs import ViewTabs

#: Below this width of the screen the left side has its least width.
NARROW = 100
#: Lines of the help and of the margins around it.
_HELP: Final = 6
_SHORT_HELP: Final = 2


class NumericsBody(FormBody):
    """The list of experiments above the form of the chosen one; the views at their right."""

    DEFAULT_CSS = """
    NumericsBody {
        #numerics-main { height: 1fr; }
        #numerics-left { width: 33; padding: 0 2 0 1; }
        #numerics-list { height: 8; }
        PlanForm { height: 6; margin: 1 0 0 0; }
        #numerics-help { height: 4; margin: 1 0 0 0; }
        #numerics-right { width: 1fr; padding: 0 1 0 0; }
        TaskTitle { padding: 0; }
        ViewTabs { padding: 0; margin: 0 0 1 0; }
        #numerics-picture { height: 1fr; }
        &.-narrow #numerics-left { width: 25; padding: 0 1 0 0; }
        &.-short PlanForm, &.-short ViewTabs, &.-short #numerics-help { margin: 0; }
        &.-short #numerics-help { height: 2; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__(drawing, tabs)
        self.list = TextPicture(drawing, id="numerics-list")
        self.help = TextPicture(drawing, id="numerics-help", focus=False)
        self.picture = TextPicture(drawing, id="numerics-picture")

    def compose(self) -> ComposeResult:
        with Horizontal(id="numerics-main"):
            with Vertical(id="numerics-left"):
                yield self.list
                yield self.form
                yield self.help
            with Vertical(id="numerics-right"):
                yield from self.compose_typing()
                yield self.title_line
                yield self.tabs
                yield self.picture

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < NARROW, "-narrow")
        self.set_class(event.size.height < SHORT, "-short")

    def make_room(self, experiments: int, settings: int) -> None:
        """Sets the heights of the list and of the form, where `settings` are the most that an
        experiment has: the form has half if both do not fit, and both scroll. The chosen experiment
        changes no height, since each change lays out the whole screen."""
        short = self.has_class("-short")
        room = self.size.height - (_SHORT_HELP if short else _HELP)
        form = max(2, min(settings + 1, max(room - experiments, room // 2)))
        listed = max(2, min(experiments, room - form))
        for widget, height in ((self.form, form), (self.list, listed)):
            before = widget.styles.height
            if before is None or before.value != height:
                widget.styles.height = height
