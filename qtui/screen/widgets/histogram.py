"""How many values fall into each bin, with the representable levels drawn below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip

from qtui.report.numbers import format_value
from qtui.screen.messages import Resized
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui_core.dataclass import dataclass

MAX_COLUMNS = 120
EIGHTHS = 8


@dataclass(frozen=True)
class HistogramData:
    """Counts of values in equal bins from `low` to `high`."""

    low: float
    high: float
    counts: Sequence[int] = field(repr=False)


class Histogram(DrawnLines):
    """Bars of eighth blocks, one column per bin; ticks at levels, and a marker for one value.
    Counts are on a logarithmic scale unless `logarithmic` is off: otherwise the tails, which
    determine the scale of a quantizer, would not be visible."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "histogram--bar", "histogram--axis", "histogram--tick", "histogram--marker",
        "histogram--title", "histogram--message",
    }  # fmt: skip
    DEFAULT_CSS = """
    Histogram {
        & > .histogram--bar { color: $secondary; }
        & > .histogram--axis { color: $quiet; }
        & > .histogram--tick { color: $warning; }
        & > .histogram--marker { color: #ff2f6f; text-style: bold; }
        & > .histogram--title { color: $foreground; }
        & > .histogram--message { color: $quiet; }
        &:ansi > .histogram--marker { color: $foreground; text-style: bold; }
    }
    """
    logarithmic: reactive[bool] = reactive(True)
    ticks: reactive[tuple[float, ...]] = reactive((), repaint=False)
    marker: reactive[float | None] = reactive(None, repaint=False)
    title: reactive[str] = reactive("values")
    note: reactive[str] = reactive("", repaint=False)
    """At the right end of the title: what the ticks are."""

    def __init__(self, drawing: Drawing, **options: str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.drawing = drawing
        self._data: HistogramData | None = None

    @property
    def data(self) -> HistogramData | None:
        return self._data

    def show(self, data: HistogramData | None) -> None:
        self._data = data
        self.refresh()

    # The bars stay while the cursor moves: only these lines are drawn again.

    def watch_ticks(self) -> None:
        self.refresh(Region(0, self.size.height - 2, self.size.width, 1))

    def watch_marker(self) -> None:
        self.watch_ticks()

    def watch_note(self) -> None:
        self.refresh(Region(0, 0, self.size.width, 1))

    def capacity(self) -> int:
        """The number of bins that fills the width, one column each."""
        return max(1, min(MAX_COLUMNS, self.size.width - 1))

    def on_resize(self) -> None:
        self.post_message(Resized(self))

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        data = self._data
        if data is None or not data.counts:
            return Strip.blank(width, self.base_style)
        if y == 0:
            segments = self._title(width)
        elif y == height - 1:
            segments = [self._segment(self._numbers(data), "axis")]
        elif y == height - 2:
            segments = self._ticks(data)
        else:
            segments = [self._segment(self._bars(data, y), "bar")]
        return Strip(segments).adjust_cell_length(width, self.base_style).crop(0, width)

    def _segment(self, text: str, part: str) -> Segment:
        return Segment(text, self.get_component_rich_style(f"histogram--{part}"))

    def _title(self, width: int) -> list[Segment]:
        scale = "log count" if self.logarithmic else "count"
        left, right = f"{self.title}, {scale}", self.note
        room = width - len(left) - len(right) - 1
        if room < 2:
            return [self._segment(left, "title")]
        return [
            self._segment(left, "title"),
            self._segment(" " * room, "axis"),
            self._segment(right, "tick"),
        ]

    def _bars(self, data: HistogramData, y: int) -> str:
        """One line of the bars; line 1 is the highest."""
        lines = self.size.height - 3
        above_ground = lines - y  # whole lines below this one
        largest = self._length(max(data.counts))
        glyphs = self.drawing.glyphs.eighths
        line = []
        for count in data.counts:
            eighths = round(self._length(count) / largest * lines * EIGHTHS) if largest else 0
            if count and not eighths:
                eighths = 1  # a bin with a single value is not an empty bin
            line.append(glyphs[max(0, min(EIGHTHS, eighths - above_ground * EIGHTHS))])
        return "".join(line)

    def _length(self, count: int) -> float:
        return math.log1p(count) if self.logarithmic else float(count)

    def _column(self, data: HistogramData, value: float) -> int | None:
        if not data.low <= value <= data.high or data.high <= data.low:
            return None
        bins = len(data.counts)
        return min(bins - 1, int((value - data.low) / (data.high - data.low) * bins))

    def _ticks(self, data: HistogramData) -> list[Segment]:
        glyphs = self.drawing.glyphs
        line = [glyphs.baseline] * len(data.counts)
        for level in self.ticks:
            column = self._column(data, level)
            if column is not None:
                line[column] = glyphs.tick
        text = "".join(line)
        at = self._column(data, self.marker) if self.marker is not None else None
        if at is None:
            return [self._segment(text, "tick")]
        return [
            self._segment(text[:at], "tick"),
            self._segment(glyphs.marker, "marker"),
            self._segment(text[at + 1 :], "tick"),
        ]

    def _numbers(self, data: HistogramData) -> str:
        width = len(data.counts)
        line = [" "] * width
        low, high = format_value(data.low, 3), format_value(data.high, 3)
        line[: len(low)] = low
        line[width - len(high) :] = high
        zero = self._column(data, 0.0)
        if zero is not None and len(low) + 1 < zero < width - len(high) - 2:
            line[zero] = "0"
        return "".join(line)[:width]
