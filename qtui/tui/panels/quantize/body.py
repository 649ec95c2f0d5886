"""How the Quantize panel is laid out at each size."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical

from qtui.report.numbers import format_bytes
from qtui.tui.panels.quantize.numbers import NumberTable
from qtui.tui.panels.quantize.schemes import SchemeControls
from qtui.tui.panels.quantize.side import TensorSide
from qtui.tui.widgets.drawing import Drawing
from qtui.tui.widgets.heatmap import Heatmap
from qtui.tui.widgets.histogram import Histogram
from qtui.tui.widgets.task_title import TaskTitle
from qtui.tui.widgets.tensor_list import TensorEntry
from qtui_core.models.quoting import printable

NARROW, MEDIUM, WIDE = 100, 116, 150
SHORT, BRIEF = 26, 24


class QuantizeBody(Container):
    """Schemes on top; below them the tensors, the pictures and the numbers side by side.

    A narrow screen has no room for the tensors: they take the place of the numbers while the
    class `-listing` is set.
    """

    DEFAULT_CSS = """
    QuantizeBody {
        SchemeControls { margin: 0 0 1 0; }
        #quantize-main { height: 1fr; }
        #quantize-centre { width: 1fr; padding: 0 1; }
        TaskTitle { margin: 0 0 1 0; padding: 0; }
        Heatmap { height: 1fr; }
        Histogram { height: 9; margin: 1 0 0 0; }
        NumberTable { width: 33; padding: 0 1; }
        &.-medium TensorSide { width: 26; }
        &.-medium NumberTable { width: 31; }
        &.-wide TensorSide { width: 46; }
        &.-wide NumberTable { width: 40; }
        &.-wide Histogram { height: 12; }
        &.-narrow TensorSide { display: none; }
        &.-narrow NumberTable { width: 30; }
        &.-narrow.-listing TensorSide { display: block; width: 30; }
        &.-narrow.-listing NumberTable { display: none; }
        &.-short Histogram { height: 5; margin: 0; }
        &.-short SchemeControls { margin: 0; }
        &.-short SchemeBar { height: 1; }
        &.-short TaskTitle { margin: 0; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.drawing = drawing
        glyphs = drawing.glyphs
        self.controls = SchemeControls(glyphs.pointer)
        self.side = TensorSide(drawing)
        self.title_line = TaskTitle()
        self.title_line.line_glyph = glyphs.baseline
        self.title_line.ellipsis = glyphs.ellipsis
        self.heatmap = Heatmap(drawing)
        self.histogram = Histogram(drawing)
        self.table = NumberTable()
        self.table.ellipsis = glyphs.ellipsis

    def compose(self) -> ComposeResult:
        yield self.controls
        with Horizontal(id="quantize-main"):
            yield self.side
            with Vertical(id="quantize-centre"):
                yield self.title_line
                yield self.heatmap
                yield self.histogram
            yield self.table

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < NARROW, "-narrow")
        self.set_class(NARROW <= width < MEDIUM, "-medium")
        self.set_class(width >= WIDE, "-wide")
        self.set_class(height < SHORT, "-short")

    @property
    def brief(self) -> bool:
        """Whether the numbers must make do with fewer lines."""
        return self.size.height < BRIEF

    @property
    def listing(self) -> bool:
        """Whether the tensors stand where the numbers are otherwise."""
        return self.has_class("-narrow") and self.has_class("-listing")

    def focus_start(self) -> None:
        """Where work starts: the tensors where they are shown, else the picture."""
        narrow = self.app.size.width < NARROW
        self.screen.set_focus(self.heatmap if narrow else self.side.list)

    @property
    def typing(self) -> bool:
        """Whether keys are text for one of the fields."""
        return self.controls.typing or self.side.typing

    @property
    def can_leave(self) -> bool:
        """Whether a field or the list has been entered that Escape leaves."""
        return self.typing or self.listing

    def leave(self) -> None:
        """Leave the innermost of them; nothing that was typed takes effect."""
        if self.controls.typing:
            self.controls.stop_typing()
            self.focus_start()
        elif self.side.typing:
            self.side.drop_filter()
        elif self.listing:
            self.show_picture()

    def show_picture(self) -> None:
        """Move to the picture; on a narrow screen the numbers stand beside it again."""
        self.remove_class("-listing")
        self.screen.set_focus(self.heatmap)

    def show_list(self) -> None:
        """Move to the list of tensors."""
        self.add_class("-listing")
        self.screen.set_focus(self.side.list)

    def show_title(self, entry: TensorEntry | None) -> None:
        """Name the tensor that is looked at, if one is."""
        if entry is None:
            self.title_line.subject, self.title_line.details = "", ()
            return
        shape = self.drawing.glyphs.times.join(f"{size:,}" for size in entry.shape) or "scalar"
        self.title_line.subject = printable(entry.name)
        self.title_line.details = (shape, printable(entry.dtype), format_bytes(entry.nbytes))

    def clear(self) -> None:
        """Nothing is looked at."""
        self.side.load(())
        self.show_title(None)
        self.heatmap.show(None)
        self.histogram.show(None)

    def redraw(self) -> None:
        """The colours of the terminal changed."""
        self.heatmap.redraw()
        for widget in (self.histogram, self.side.list, self.table):
            widget.refresh()
