"""A grid of cells with paints, and the signs that pictures in cells are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from qtui.report.pictures.scene import Place
from qtui_core.dataclass import dataclass

#: Dots in a cell, across and down, and the bit of each (Unicode, block Braille Patterns).
ACROSS: Final = 2
DOWN: Final = 4
BLANK: Final = 0x2800
BITS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

#: Paints besides those of `hue`, `heat` and `grey`.
TITLE, LABEL, QUIET, FAINT, FLOOR, POINT = "title", "label", "quiet", "faint", "floor", "point"
#: Colours that lines have, one after the other.
HUES: Final = 7
#: Steps of the paints of magnitudes.
LEVELS: Final = 32


def hue(number: int) -> str:
    """The paint of a line by its place among the lines."""
    return f"hue{number % HUES}"


def heat(share: float) -> str:
    """The paint of a magnitude, 0 to 1: a ground, for terminals whose colours carry it."""
    return f"heat{_step(share)}"


def grey(share: float) -> str:
    """The same where it is paler, since it is lost or behind something."""
    return f"grey{_step(share)}"


def _step(share: float) -> int:
    return max(0, min(LEVELS - 1, round(share * (LEVELS - 1))))


@dataclass(frozen=True)
class Brush:
    """What a terminal can draw. `shaded`: colours carry no magnitude, so that signs do."""

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
        """The sign of a magnitude: the blank only for nothing at all."""
        if share <= 0:
            return self.shades[0]
        return self.shades[min(len(self.shades) - 1, 1 + int(share * (len(self.shades) - 1)))]


@dataclass(frozen=True)
class Painted:
    """A text at a column of a line, in a paint; "" is the colour of all other text."""

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
        """Writes over what is there; what is outside is cut off."""
        if 0 <= row < self.height:
            for at, sign in enumerate(text, column):
                if 0 <= at < self.width:
                    self._cells[row, at] = sign, paint

    def put_title(self, text: str, ellipsis: str) -> None:
        """Writes over the first row; a text that is longer ends in an ellipsis."""
        fits = len(text) <= self.width
        self.put(0, 0, text if fits else text[: self.width - 1] + ellipsis, TITLE)

    def is_free(self, row: int, column: int, width: int = 1) -> bool:
        """Whether nothing stands there, and all of it is inside."""
        return (
            0 <= row < self.height
            and column >= 0
            and column + width <= self.width
            and all((row, at) not in self._cells for at in range(column, column + width))
        )

    def lines(self) -> list[list[Painted]]:
        """Row by row, cells of one paint that touch together."""
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
    """Without paints."""
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
    """(row from the top, column) -> bits of the dots of a line through these places; every other
    pair of dots where it is `faint`."""
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
