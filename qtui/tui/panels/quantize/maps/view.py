"""Pictures of the tensor, and how its values are spread."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widget import Widget

from qtui.tui.panels.quantize.views import View
from qtui.tui.widgets.drawing import Drawing
from qtui.tui.widgets.heatmap import Heatmap
from qtui.tui.widgets.histogram import Histogram


class MapsView(View):
    """A map of the tensor above the histogram of its values."""

    VIEW_ID = "maps"
    TITLE = "Maps"
    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("c", "counts", "Log counts", show=False, id="quantize.counts",
                tooltip="Histogram: log or plain counts"),
    )  # fmt: skip

    DEFAULT_CSS = """
    MapsView {
        layout: vertical;
        Heatmap { height: 1fr; }
        Histogram { height: 9; margin: 1 0 0 0; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__(drawing)
        self.heatmap = Heatmap(drawing)
        self.histogram = Histogram(drawing)

    def compose(self) -> ComposeResult:
        yield self.heatmap
        yield self.histogram

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        self.heatmap.message = message
        self.heatmap.set_class(trouble, "-trouble")
        if not keep:
            self.heatmap.show(None)
            self.histogram.show(None)

    def focus_start(self) -> bool:
        self.screen.set_focus(self.heatmap)
        return True

    def maximise_target(self) -> Widget | None:
        return self.heatmap

    def drawing_changed(self) -> None:
        self.heatmap.redraw()
        self.histogram.refresh()

    def action_counts(self) -> None:
        self.histogram.logarithmic = not self.histogram.logarithmic
