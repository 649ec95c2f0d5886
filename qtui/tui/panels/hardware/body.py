"""The layout of the Hardware panel: the views' names, a title, and one picture."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Container

from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.task_title import TaskTitle
from qtui.screen.widgets.text_picture import TextPicture
from qtui.screen.widgets.view_tabs import ViewTabs

SHORT = 26


class HardwareBody(Container):
    """All views draw text, so they share one picture."""

    DEFAULT_CSS = """
    HardwareBody {
        ViewTabs { margin: 0 0 1 0; }
        TaskTitle { margin: 0 0 1 0; }
        #hardware-picture { height: 1fr; margin: 0 1; }
        &.-short ViewTabs, &.-short TaskTitle { margin: 0; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__()
        self.tabs = tabs
        self.title_line = TaskTitle(drawing)
        self.picture = TextPicture(drawing, id="hardware-picture")

    def compose(self) -> ComposeResult:
        yield self.tabs
        yield self.title_line
        yield self.picture

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < SHORT, "-short")
