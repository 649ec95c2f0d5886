"""Pictures as lines of text with tones, and the widget that draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar, Final, get_args

from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from qtui.report.pictures.cells import HUES, LEVELS, Put, TextLine, Tone
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import Drawing, Ramp, palette_color
from qtui.screen.widgets.drawn_lines import DrawnLines
from qtui.screen.widgets.heatmap.ramps import brightness
from qtui.screen.widgets.line import Line
from qtui_core.dataclass import dataclass

#: The most lines of a picture with automatic height.
MOST_ROWS: Final = 1000
#: The hues of lines in the 256-colour and in the 16-colour palette.
_HUES_256: Final = (74, 172, 36, 169, 98, 142, 73)
#: The share of the grey ramp for magnitudes that are lost or lie behind something.
_GREYS: Final = 0.35


@dataclass(frozen=True)
class Canvas:
    """The room in cells, and the glyphs to draw with."""

    width: int
    height: int
    glyphs: Glyphs


Draw = Callable[[Canvas], Sequence[TextLine]]


def right(
    end: int, text: str, tone: Tone = "value", pick: int | tuple[int, int] | None = None
) -> Put:
    """A text that ends before column `end`."""
    return Put(end - len(text), text, tone, pick)


#: A text with its tone; and a line of such texts.
Toned = tuple[str, Tone]
TonedLine = Sequence[Toned]


def in_row(texts: TonedLine) -> TextLine:
    """Texts one after the other, each in its tone."""
    line: list[Put] = []
    column = 0
    for text, tone in texts:
        line.append(Put(column, text, tone))
        column += len(text)
    return line


def in_rows(layout: Callable[[int, int], Sequence[TonedLine]]) -> Draw:
    """A picture of lines of texts, which `layout` arranges for a width and a height."""
    return lambda canvas: [in_row(line) for line in layout(canvas.width, canvas.height)]


def plain_text(lines: Iterable[TextLine], width: int) -> list[str]:
    """Lines without tones, for copying."""
    rows = []
    for line in lines:
        row = Line(width, Style())
        for put in line:
            row.put(put.column, put.text)
        rows.append(row.strip().text.rstrip())
    return rows


class TextPicture(DrawnLines, can_focus=True):
    """Draws what a function of its size returns; what does not fit is cut off. An automatic height
    is that of its lines. `focus` says whether it takes the focus."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"picture--{tone}" for tone in get_args(Tone)}
    DEFAULT_CSS = """
    TextPicture {
        & > .picture--heading { color: $primary; text-style: bold; }
        & > .picture--label { color: $quiet; }
        & > .picture--value { color: $foreground; }
        & > .picture--strong { color: $foreground; text-style: bold; }
        & > .picture--title { color: $foreground; }
        & > .picture--quiet { color: $quiet; }
        & > .picture--bar { color: $secondary; }
        & > .picture--expected { color: $warning; }
        & > .picture--cursor { color: $foreground; text-style: bold reverse; }
        & > .picture--warning { color: $warning; text-style: bold; }
        & > .picture--best { color: $success; text-style: bold; }
        & > .picture--sign { color: $field-sign; }
        & > .picture--exponent { color: $field-exponent; }
        & > .picture--mantissa { color: $field-mantissa; }
    }
    """

    class Picked(Message):
        """A line or a cell was clicked; `twice`: for the second time in quick succession."""

        def __init__(self, pick: int | tuple[int, int], twice: bool) -> None:
            super().__init__()
            self.pick = pick
            self.twice = twice

    def __init__(
        self,
        drawing: Drawing,
        draw: Draw | None = None,
        *,
        id: str | None = None,
        focus: bool = True,
    ) -> None:
        super().__init__(id=id)
        self.drawing = drawing
        self.can_focus = focus
        self._draw = draw
        self._lines: Sequence[TextLine] = ()

    def show(self, draw: Draw) -> None:
        """Shows another picture, or the same with other data."""
        self._draw = draw
        self.update()

    def update(self) -> None:
        """Draws again, as the result of the function has changed."""
        if self.styles.is_auto_height and self._rows(self.size.width) != self.size.height:
            self.refresh(layout=True)
        self._redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._rows(width, container.height)

    def _rows(self, width: int, height: int = MOST_ROWS) -> int:
        if self._draw is None:
            return 0
        return len(self._draw(Canvas(width, height, self.drawing.glyphs)))

    def on_resize(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        width, height = self.size
        if self._draw is None or width < 1 or height < 1:
            return
        before, lines = self._lines, self._draw(Canvas(width, height, self.drawing.glyphs))
        self._lines = lines
        # Only lines that differ: a table that is drawn twice a second hardly changes.
        changed = [y for y, pair in enumerate(zip_longest(before, lines)) if pair[0] != pair[1]]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        offset = event.get_content_offset(self)
        if offset is None or not 0 <= offset.y < len(self._lines):
            return
        picks = [put for put in self._lines[offset.y] if put.pick is not None]
        # A cell can be clicked from the end of the cell to its left on.
        hit = next((put for put in picks if offset.x < put.column + len(put.text)), None)
        hit = picks[-1] if hit is None and picks else hit
        if hit is not None and hit.pick is not None:
            self.post_message(self.Picked(hit.pick, event.chain == 2))

    @property
    def text(self) -> str:
        """The picture as plain text, for copying."""
        return "\n".join(plain_text(self._lines, self.size.width))

    def lines_of(self, width: int, height: int) -> int:
        """How many lines the picture has in a room of this size."""
        return self._rows(width, height)

    def text_for(self, width: int, height: int) -> list[str]:
        """The lines of the picture in another size, as plain text."""
        canvas = Canvas(width, height, self.drawing.glyphs)
        return plain_text(self._draw(canvas) if self._draw is not None else (), width)

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.base_style)
        for put in self._lines[y] if y < len(self._lines) else ():
            line.put(put.column, put.text, self.style_of(put.tone))
        return line.strip()

    def style_of(self, tone: str) -> Style:
        """The style of a tone, also of the lines (`hue`) and magnitudes (`heat`, `grey`) in the
        pictures of reports."""
        if tone.startswith("hue"):
            return _hue(int(tone[3:]), self.drawing.depth)
        if tone.startswith("heat"):
            return _magnitude(int(tone[4:]) / (LEVELS - 1), self.drawing.ramp)
        if tone.startswith("grey"):
            return _magnitude(_GREYS * int(tone[4:]) / (LEVELS - 1), self.drawing.grey_ramp)
        return self.get_component_rich_style(f"picture--{tone}", partial=True)


def _hue(number: int, depth: Depth) -> Style:
    if depth is Depth.TRUECOLOR:
        return Style(color=Color.parse(HUES[number]))
    if depth is Depth.C256:
        return Style(color=palette_color(_HUES_256[number]))
    return Style.null()  # of 16 colours none stands out in all palettes


def _magnitude(share: float, ramp: Ramp) -> Style:
    """A background from the ramp, with a black or white foreground that is readable on it."""
    if not ramp.has_colors:
        return Style.null()
    ground = ramp.color(ramp.level(min(share, 0.9999)))
    triplet = ground.triplet or ColorTriplet(0, 0, 0)
    light = brightness((triplet.red, triplet.green, triplet.blue)) > 0.2
    ink = palette_color(16 if light else 231)
    if ramp.colors and ground.type is ColorType.TRUECOLOR:
        ink = Color.from_rgb(*((0, 0, 0) if light else (255, 255, 255)))
    return Style(color=ink, bgcolor=ground)


def window(count: int, at: int, room: int) -> range:
    """As many lines of a list as there is room for, including the current one."""
    room = max(1, room)
    first = max(0, min(at - room // 2, count - room))
    return range(first, min(count, first + room))


def wrapped(text: str, width: int) -> list[str]:
    """Words in lines of at most `width` characters."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def paragraphs(texts: Iterable[str], width: int, tone: Tone = "quiet") -> list[TextLine]:
    """Texts one below the other, each wrapped."""
    return [[Put(0, line, tone)] for text in texts for line in wrapped(text, width)]


def headings(*titles: tuple[int, str]) -> list[Put]:
    """Titles of columns. Each begins at its column, or ends before it where that is negative."""
    return [
        Put(at, text, "heading") if at >= 0 else right(-at, text, "heading") for at, text in titles
    ]


def centred(text: str) -> Draw:
    """A message in the middle of a picture."""

    def draw(canvas: Canvas) -> list[TextLine]:
        lines = [each for line in text.split("\n") for each in wrapped(line, canvas.width)]
        above = max(0, (canvas.height - len(lines)) // 2)
        return [
            *([] for _ in range(above)),
            *([Put(max(0, (canvas.width - len(line)) // 2), line, "quiet")] for line in lines),
        ]

    return draw
