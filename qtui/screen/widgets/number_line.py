"""The representable numbers of several formats on a piece of the real line."""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar

from rich.style import Style
from textual.geometry import Size
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from qtui.screen.messages import Resized
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.line import Line, shortened
from qtui_core.dataclass import dataclass

# With more numbers than this in a cell, a track looks the same.
FULL = 128
# The most lines of a track.
TALLEST = 4


@dataclass(frozen=True)
class FormatTrack:
    """One format: how many of its numbers fall into each cell, and the cell of the number that the
    value becomes (None if it is outside). `note` is written on an empty track."""

    name: str
    counts: tuple[int, ...]
    at: int | None
    note: str = ""


@dataclass(frozen=True)
class CellSpan:
    """The rounding interval of the chosen format, in cells; None for an end that is not visible."""

    start: int | None
    end: int | None
    start_closed: bool
    end_closed: bool


@dataclass(frozen=True)
class Ruler:
    """What a NumberLine shows. Every track has as many cells as the ruler is wide."""

    title: str
    tracks: tuple[FormatTrack, ...]
    value_at: int | None
    span: CellSpan | None
    left: str
    right: str
    #: The cell of the number that the pinned format makes of the value.
    pinned_at: int | None = None


class NumberLine(Widget):
    """A track for each format, the chosen one first with its rounding interval under it; then the
    axis.

    One number in a cell is a tick; more are a bar that grows with each doubling of their count. The
    number that the value becomes has its own glyph.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "line--name",
        "line--tick",
        "line--dense",
        "line--here",
        "line--value",
        "line--span",
        "line--axis",
        "line--text",
    }
    LABEL_WIDTH = 12

    ruler: reactive[Ruler | None] = reactive(None, init=False)

    def __init__(self, drawing: Drawing, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.drawing = drawing

    @property
    def cells(self) -> int:
        """How many cells a track has at this size."""
        return max(8, self.size.width - self.LABEL_WIDTH - 1)

    @property
    def track_room(self) -> int:
        """How many tracks fit beside the interval and the axis."""
        return max(1, self.size.height - 2)

    def on_resize(self) -> None:
        self.post_message(Resized(self))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 2 + (len(self.ruler.tracks) if self.ruler else 1)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"line--{name}", partial=True)

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.rich_style)
        ruler = self.ruler
        if ruler is None:
            return line.strip()
        tall = self._tall(ruler)
        # The interval stands below the first track.
        number, above = divmod(y if y < tall else y - 1, tall)
        if y == tall:
            self._draw_span(line, ruler)
        elif number < len(ruler.tracks):
            ground = tall - 1 - above
            self._draw_counts(line, ruler.tracks[number], tall, ground)
            if not ground:
                self._draw_named(line, ruler.tracks[number])
            if y == tall - 1 and ruler.pinned_at is not None:
                both = ruler.pinned_at == ruler.tracks[0].at
                mark = self.drawing.glyphs.outlier if both else "P"
                line.put(self.LABEL_WIDTH + ruler.pinned_at, mark, self._style("here"))
        elif y == tall * len(ruler.tracks) + 1:
            self._draw_axis(line, ruler)
        return line.strip()

    def _tall(self, ruler: Ruler) -> int:
        """The lines of each track: more than one where all of them have room for it."""
        return max(1, min(TALLEST, (self.size.height - 2) // len(ruler.tracks)))

    def _draw_counts(self, line: Line, track: FormatTrack, tall: int, ground: int) -> None:
        """The line of a track of `tall` lines that lies `ground` lines above its lowest."""
        glyphs, at = self.drawing.glyphs, self.LABEL_WIDTH
        empty, tick, dense = self._style("axis"), self._style("tick"), self._style("dense")
        for count, cells in groupby(track.counts):
            run = sum(1 for _ in cells)
            if count == 0:
                line.put(at, (" " if ground else glyphs.dot) * run, empty)
            elif count == 1:
                line.put(at, glyphs.tick * run, tick)
            else:
                height = max(0, min(8, density_level(count) * tall - 8 * ground))
                line.put(at, glyphs.eighths[height] * run, dense)
            at += run

    def _draw_named(self, line: Line, track: FormatTrack) -> None:
        """What stands once on a track: its name, its note, and where the value goes."""
        glyphs = self.drawing.glyphs
        line.put(0, shortened(track.name, self.LABEL_WIDTH - 1), self._style("name"))
        if track.note:
            text = f" {track.note} "
            start = self.LABEL_WIDTH + (len(track.counts) - len(text)) // 2
            line.put(start, text, self._style("text"))
        if track.at is not None:
            line.put(self.LABEL_WIDTH + track.at, glyphs.outlier, self._style("here"))

    def _draw_span(self, line: Line, ruler: Ruler) -> None:
        glyphs = self.drawing.glyphs
        line.put(0, "rounds to it", self._style("text"))
        span, last = ruler.span, len(ruler.tracks[0].counts) - 1
        if span is not None:
            style = self._style("span")
            start = 0 if span.start is None else span.start
            end = last if span.end is None else span.end
            # The value's own mark has priority in its cell; a bracket in the same cell moves
            # outwards.
            if ruler.value_at == start and span.start:
                start -= 1
            if ruler.value_at == end and span.end is not None and end < last:
                end += 1
            for cell in range(start, end + 1):
                line.put(self.LABEL_WIDTH + cell, glyphs.baseline, style)
            if span.start is not None:
                line.put(self.LABEL_WIDTH + start, "[" if span.start_closed else "(", style)
            if span.end is not None and (end > start or span.start is None):
                line.put(self.LABEL_WIDTH + end, "]" if span.end_closed else ")", style)
        if ruler.value_at is not None:
            line.put(self.LABEL_WIDTH + ruler.value_at, glyphs.marker, self._style("value"))

    def _draw_axis(self, line: Line, ruler: Ruler) -> None:
        style = self._style("text")
        middle = self.LABEL_WIDTH + (self.cells - len(ruler.title)) // 2
        line.put(max(self.LABEL_WIDTH + len(ruler.left) + 2, middle), ruler.title, style)
        line.put(self.LABEL_WIDTH, ruler.left, style)
        line.put_right(self.LABEL_WIDTH + self.cells, ruler.right, style)


def density_level(count: int) -> int:
    """The height in eighths (1..7) of a cell with more than one number: one more for each doubling,
    the highest from FULL on."""
    return min(7, count.bit_length() - 1)
