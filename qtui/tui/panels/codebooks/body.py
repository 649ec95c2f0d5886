"""How the Codebooks panel is laid out at each size."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.tensors.panel import TensorBody
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.text_picture import Draw, TextPicture
from qtui.screen.widgets.view_tabs import ViewTabs
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes

WIDE = 150
SHORT = 26


class CodebooksBody(TensorBody):
    """Views and settings on top, the picture below them. On a wide screen the list of tensors is at
    its left; on others it replaces the picture while the class `-listing` is set."""

    DEFAULT_CSS = """
    CodebooksBody {
        #codebooks-top { height: 1; margin: 0 0 1 0; }
        #codebooks-top ViewTabs { width: 1fr; }
        #codebooks-settings { width: auto; padding: 0 1; color: $quiet; }
        #codebooks-main { height: 1fr; }
        #codebooks-centre { width: 1fr; padding: 0 1; }
        TaskTitle { margin: 0 0 1 0; padding: 0; }
        TextPicture { height: 1fr; }
        TensorSide { display: none; }
        &.-wide TensorSide { display: block; width: 38; }
        &.-listing TensorSide { display: block; }
        &.-listing.-narrow TensorSide { width: 1fr; }
        &.-listing.-narrow #codebooks-centre { display: none; }
        &.-short #codebooks-top, &.-short TaskTitle { margin: 0; }
        &.-untitled TaskTitle { display: none; }
    }
    """

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__(drawing, tabs)
        self.settings = Static(id="codebooks-settings", markup=False)
        self.picture = TextPicture(drawing)

    def compose(self) -> ComposeResult:
        with Horizontal(id="codebooks-top"):
            yield self.tabs
            yield self.settings
        with Horizontal(id="codebooks-main"):
            yield self.side
            with Vertical(id="codebooks-centre"):
                yield self.title_line
                yield self.picture

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < WIDE, "-narrow")
        self.set_class(width >= WIDE, "-wide")
        self.set_class(height < SHORT, "-short")

    def show_picture(self) -> None:
        super().show_picture()
        self.screen.set_focus(self.picture)

    # What is shown

    def show_title(self, entry: TensorEntry | None, words: tuple[str, ...] = ()) -> None:
        """Shows the name of the current tensor, if there is one; `words` say how it was changed."""
        if entry is None:
            self.title_line.subject, self.title_line.details = "", ()
            return
        shape = entry.shape_text(self.drawing.glyphs.times)
        self.title_line.subject = printable(entry.name)
        size = format_bytes(entry.nbytes)
        self.title_line.details = (*words, shape, printable(entry.dtype), size)

    def show(self, draw: Draw, *, titled: bool) -> None:
        """Shows a picture; `titled` says whether it is of the tensor, which is then named."""
        self.set_class(not titled, "-untitled")
        self.picture.show(draw)
