"""A grid of painted cells, and the characters that pictures in cells use. A paint is the name of a
colour, which the face chooses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from qtui.report.pictures.scene import Place
from qtui_core.dataclass import dataclass

#: Columns and rows of dots in a cell, and the bit of each dot (Unicode, block Braille Patterns).
ACROSS: Final = 2
DOWN: Final = 4
BLANK: Final = 0x2800
BITS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

#: Paints besides those of `hue`, `heat` and `grey`.
TITLE, LABEL, QUIET, FAINT, FLOOR, POINT = "title", "label", "quiet", "faint", "floor", "point"
#: The number of colours of lines.
HUES: Final = 7
#: The number of paints of magnitudes.
LEVELS: Final = 32


def hue(number: int) -> str:
    """The paint of the line with this index."""
    return f"hue{number % HUES}"


def heat(share: float) -> str:
    """The paint of a magnitude, 0 to 1: a background colour, if the terminal has enough."""
    return f"heat{_step(share)}"


def grey(share: float) -> str:
    """The same in grey, for a magnitude that is lost or lies behind something."""
    return f"grey{_step(share)}"


def _step(share: float) -> int:
    return max(0, min(LEVELS - 1, round(share * (LEVELS - 1))))


@dataclass(frozen=True)
class Brush:
    """What a terminal can draw. `shaded`: characters show magnitudes, as colours cannot."""

    ascii: bool = False
    shaded: bool = True

    @property
    def shades(self) -> str:
        return " .:*#" if self.ascii else " ░▒▓█"

    @property
    def eighths(self) -> str:
        return " ..::||##" if self.ascii else " ▁▂▃▄▅▆▇█"

    @property
    def band(self) -> str:
        return ":" if self.ascii else "░"

    @property
    def floor(self) -> str:
        return "." if self.ascii else "·"

    @property
    def rule(self) -> str:
        return "-" if self.ascii else "─"

    @property
    def upright(self) -> str:
        return "|" if self.ascii else "│"

    @property
    def point(self) -> str:
        return "@" if self.ascii else "◆"

    @property
    def times(self) -> str:
        return "x" if self.ascii else "×"

    @property
    def ellipsis(self) -> str:
        return "~" if self.ascii else "…"

    def shade(self, share: float) -> str:
        """The character of a magnitude, 0 to 1; a blank only for zero."""
        if share <= 0:
            return self.shades[0]
        return self.shades[min(len(self.shades) - 1, 1 + int(share * (len(self.shades) - 1)))]


@dataclass(frozen=True)
class Painted:
    """A text at a column of a line, in a paint; "" is the default colour."""

    column: int
    text: str
    paint: str = ""


PaintedLine = Sequence[Painted]


class CellGrid:
    """`width` by `height` cells, row 0 at the top."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}

    def put(self, row: int, column: int, text: str, paint: str = "") -> None:
        """Writes a text over existing cells; parts outside the grid are cut off."""
        if 0 <= row < self.height:
            for at, sign in enumerate(text, column):
                if 0 <= at < self.width:
                    self._cells[row, at] = sign, paint

    def put_title(self, text: str, ellipsis: str) -> None:
        """Writes over the first row; a text that is longer ends in an ellipsis."""
        fits = len(text) <= self.width
        self.put(0, 0, text if fits else text[: self.width - 1] + ellipsis, TITLE)

    def is_free(self, row: int, column: int, width: int = 1) -> bool:
        """Whether `width` cells are blank and inside the grid."""
        return (
            0 <= row < self.height
            and column >= 0
            and column + width <= self.width
            and all((row, at) not in self._cells for at in range(column, column + width))
        )

    def lines(self) -> list[list[Painted]]:
        """The rows; neighbouring cells of the same paint are one text."""
        found: list[list[Painted]] = []
        for row in range(self.height):
            line: list[Painted] = []
            text, start, paint = "", 0, ""
            for column in range(self.width + 1):
                cell = self._cells.get((row, column))
                if text and (cell is None or cell[1] != paint):
                    line.append(Painted(start, text, paint))
                    text = ""
                if cell is not None:
                    if not text:
                        start, paint = column, cell[1]
                    text += cell[0]
            found.append(line)
        return found


def plain_lines(lines: Iterable[PaintedLine]) -> list[str]:
    """The lines as plain text."""
    found = []
    for line in lines:
        text = ""
        for painted in sorted(line, key=lambda each: each.column):
            text = text.ljust(painted.column)[: painted.column] + painted.text
        found.append(text.rstrip())
    return found


def dotted(pieces: Iterable[Sequence[Place]], width: int, height: int, faint: bool) -> dict[
    tuple[int, int], int
]:  # fmt: skip
    """(row from the top, column) -> the bits of the dots of a line through these places; a `faint`
    line has every other pair of dots."""
    across, down = width * ACROSS - 1, height * DOWN - 1
    masks: dict[tuple[int, int], int] = {}
    drawn = 0

    def dot(x: int, y: int) -> None:
        nonlocal drawn
        drawn += 1
        if faint and drawn % 4 >= 2:
            return
        cell = (y // DOWN, x // ACROSS)
        masks[cell] = masks.get(cell, 0) | BITS[x % ACROSS][y % DOWN]

    for piece in pieces:
        dots = [(round(x * across), round((1 - y) * down)) for x, y in piece]
        if len(dots) == 1:
            dot(*dots[0])
        for (x0, y0), (x1, y1) in pairwise(dots):
            steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            for at in range(steps + 1):
                dot(round(x0 + (x1 - x0) * at / steps), round(y0 + (y1 - y0) * at / steps))
    return masks
