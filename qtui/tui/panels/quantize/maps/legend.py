"""The scale that two maps share, and the element under their cursors."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.strip import Strip

from qtui.engine.answers.tensors import Element
from qtui.report.numbers import format_value
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui.screen.widgets.heatmap.grid import HeatScale
from qtui.screen.widgets.heatmap.legend import scale_segments

GAP = 3


class SharedLegend(DrawnLines):
    """One line: what the maps show, their scale, and the element if there is room."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"legend--title", "legend--quiet"}
    DEFAULT_CSS = """
    SharedLegend {
        height: 1;
        & > .legend--title { color: $foreground; text-style: bold; }
        & > .legend--quiet { color: $quiet; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.drawing = drawing
        self.titles: tuple[str, ...] = ("",)
        self._scale: HeatScale | None = None
        self._element = ""

    def clear(self) -> None:
        """Removes the legend, as there are no maps."""
        self.titles = ("",)
        self.show(None, None)

    def show(self, scale: HeatScale | None, element: Element | None) -> None:
        """Shows another scale, or none where each map has its own, or another element."""
        self._scale = scale
        self._element = ""
        if element is not None:
            error = "none" if element.error == 0 else f"{element.error:+.3g}"
            self._element = (
                f"({element.row:,}, {element.column:,}) {format_value(element.value, 4)}, "
                f"error {error}"
            )
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        drawing, scale = self.drawing, self._scale
        bold = self.get_component_rich_style("legend--title")
        quiet = self.get_component_rich_style("legend--quiet")
        blank = Segment(" " * GAP, self.base_style)
        bar: list[Segment] = []
        if scale is not None:
            ramp = drawing.signed_ramp if scale.signed else drawing.ramp
            bar = [blank, *scale_segments(scale, ramp, 8, quiet, self.base_style)]
        for title in self.titles:
            for element in (self._element, ""):
                segments = [
                    Segment(title, bold),
                    *bar,
                    *([blank, Segment(element, quiet)] if element else []),
                ]
                if sum(len(segment.text) for segment in segments) <= width:
                    return Strip(segments).adjust_cell_length(width, self.base_style)
        title = self.titles[-1][:width]
        return Strip([Segment(title, bold)]).adjust_cell_length(width, self.base_style)
