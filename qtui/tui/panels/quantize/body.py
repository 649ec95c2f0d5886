"""The layout of the Quantize panel at each size of the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import ContentSwitcher

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.tensors.panel import TensorBody
from qtui.screen.tensors.subject import WEIGHT, Subject
from qtui.screen.widgets.heatmap.widget import Heatmap
from qtui.screen.widgets.histogram import Histogram
from qtui.screen.widgets.scheme_bar import SchemeBar
from qtui.screen.widgets.text_picture import TextPicture
from qtui.tui.panels.quantize.activations.view import ActivationsView
from qtui.tui.panels.quantize.maps.view import MapsView
from qtui.tui.panels.quantize.view import TensorView
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

NARROW, MEDIUM, WIDE = 100, 116, 150
SHORT, BRIEF, LOW = 26, 24, 14


class QuantizeBody(TensorBody):
    """The schemes on top; below them the tensors, the pictures and the numbers side by side. On a
    narrow screen the tensors replace the numbers while the class `-listing` is set."""

    DEFAULT_CSS = """
    QuantizeBody {
        #quantize-main { height: 1fr; }
        #quantize-centre { width: 1fr; padding: 0 1; }
        #quantize-views { height: 1fr; }
        TaskTitle { margin: 0 0 1 0; padding: 0; }
        ViewTabs { margin: 0 0 1 0; }
        #quantize-numbers { width: 33; height: 1fr; padding: 0 1; }
        &.-medium TensorSide { width: 26; }
        &.-medium #quantize-numbers { width: 31; }
        &.-wide TensorSide { width: 46; }
        &.-wide #quantize-numbers { width: 40; }
        &.-wide Histogram { height: 12; }
        &.-narrow TensorSide { display: none; }
        &.-narrow #quantize-numbers { width: 30; }
        &.-narrow.-listing TensorSide { display: block; width: 30; }
        &.-narrow.-listing #quantize-numbers { display: none; }
        &.-short Histogram { height: 5; margin: 0; }
        &.-short ViewTabs { margin: 0; }
        &.-low ViewTabs { display: none; }
        &.-alone #quantize-numbers { display: none; }
        &.-whole TensorSide, &.-whole #quantize-title { display: none; }
        &.-short SchemeBar { height: 1; }
        &.-short TaskTitle { margin: 0; }
    }
    """

    def __init__(self, panel: QuantizePanel) -> None:
        super().__init__(panel.drawing, panel.tabs)
        self.panel = panel
        self.bar = SchemeBar()
        self.bar.pointer = self.drawing.glyphs.pointer
        self.title_line.id = "quantize-title"
        self.table = TextPicture(self.drawing, id="quantize-numbers", focus=False)

    def compose(self) -> ComposeResult:
        yield self.bar
        yield self.tabs
        with Horizontal(id="quantize-main"):
            yield self.side
            with Vertical(id="quantize-centre"):
                yield self.title_line
                with ContentSwitcher(initial=self.view.id, id="quantize-views"):
                    yield from self.panel.views
            yield self.table

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < NARROW, "-narrow")
        self.set_class(NARROW <= width < MEDIUM, "-medium")
        self.set_class(width >= WIDE, "-wide")
        self.set_class(height < SHORT, "-short")
        self.set_class(height < LOW, "-low")

    @property
    def brief(self) -> bool:
        """Whether the screen is so low that only the main numbers fit."""
        return self.size.height < BRIEF

    @property
    def view(self) -> TensorView:
        """The current view."""
        return self.panel.view

    @property
    def maps(self) -> MapsView:
        """The Maps view, which shows the panel's map and histogram."""
        return self.panel.view_of(MapsView)

    @property
    def activations(self) -> ActivationsView:
        """The Activations view, which knows the captured modules."""
        return self.panel.view_of(ActivationsView)

    @property
    def heatmap(self) -> Heatmap:
        return self.maps.heatmap

    @property
    def histogram(self) -> Histogram:
        return self.maps.histogram

    def show_view(self) -> None:
        """Shows the current view in the centre."""
        self.query_one(ContentSwitcher).current = self.view.id
        self.make_room()

    def make_room(self) -> None:
        """Shows or hides the numbers and the tensors, as the view needs it."""
        self.set_class(not self.view.with_numbers(), "-alone")
        self.set_class(not self.view.OF_TENSOR, "-whole")

    def focus_start(self) -> None:
        """Moves the focus to the tensors if they are shown, else to the picture."""
        alone = self.app.size.width < NARROW or not self.view.OF_TENSOR
        if not (alone and self.view.focus_start()):
            self.screen.set_focus(self.side.list)

    @property
    def typing(self) -> bool:
        return self.view.typing or super().typing

    @property
    def beside_list(self) -> bool:
        """Whether the view has the focus, and the tensors are shown beside it."""
        return bool(self.side.list.region) and self.view.has_focus_within

    def leave(self) -> None:
        if self.view.typing:
            self.view.leave()
        elif self.beside_list and not self.can_leave:
            self.screen.set_focus(self.side.list)
        else:
            super().leave()

    def show_picture(self) -> None:
        super().show_picture()
        self.view.focus_start()

    def show_title(self, entry: TensorEntry | None, subject: Subject | None = None) -> None:
        """Shows the name of the subject, if there is one."""
        if entry is None:
            self.title_line.subject, self.title_line.note, self.title_line.details = "", "", ()
            return
        shape = entry.shape_text(self.drawing.glyphs.times)
        subject = subject or Subject(entry.name)
        stored = (shape, printable(entry.dtype), format_bytes(entry.nbytes))
        self.title_line.subject = printable(subject.title)
        self.title_line.note = ", ".join(subject.words)
        self.title_line.details = stored if subject.source == WEIGHT else ()

    def clear(self) -> None:
        """Removes everything, as no tensor is chosen."""
        self.side.load(())
        self.show_title(None)
        self.say("", keep=False, trouble=False)

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        """Shows a text in place of the pictures: what is being done, or why there are none."""
        for view in self.panel.views:
            view.say(message, keep=keep, trouble=trouble)
