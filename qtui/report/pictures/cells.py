"""Pictures as lines of text with tones, which the face has styles for, and a grid of such cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal, NewType

from qtui_core.dataclass import dataclass

#: Columns and rows of dots in a cell, and the bit of each dot (Unicode, block Braille Patterns).
ACROSS: Final = 2
DOWN: Final = 4
BLANK: Final = 0x2800
BITS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

#: The colours of lines as CSS has them, readable on light and dark pages and with the common kinds
#: of colour blindness (after Okabe and Ito, "Color Universal Design", 2008).
HUES: Final = ("#3b82c4", "#d9822b", "#2f9e78", "#c4629b", "#8a6fc9", "#b8a12a", "#4fb0c6")
#: The number of colours of magnitudes.
LEVELS: Final = 32

Tone = Literal[
    "heading", "title", "label", "value", "strong", "quiet", "bar", "expected", "cursor", "warning",
    "best", "sign", "exponent", "mantissa",
]  # fmt: skip
#: A tone of `hue`, `heat` or `grey`.
Paint = NewType("Paint", str)


@dataclass(frozen=True)
class Put:
    """A text at a column of a line. `pick` is what a click on it chooses: the index of a line in
    its list, or the row and column of a cell. If it is the only one on its line, the whole line can
    be clicked."""

    column: int
    text: str
    tone: Tone | Paint = "value"
    pick: int | tuple[int, int] | None = None


TextLine = Sequence[Put]
#: A point of a plane, (x, y), each 0 to 1 from the bottom left.
Place = tuple[float, float]


def hue(number: int) -> Paint:
    """The tone of the line with this index."""
    return Paint(f"hue{number % len(HUES)}")


def heat(share: float) -> Paint:
    """The tone of a magnitude, 0 to 1: a background colour, if the terminal has enough."""
    return Paint(f"heat{_step(share)}")


def grey(share: float) -> Paint:
    """The same in grey, for a magnitude that is lost or lies behind something."""
    return Paint(f"grey{_step(share)}")


def _step(share: float) -> int:
    return max(0, min(LEVELS - 1, round(share * (LEVELS - 1))))


class CellGrid:
    """`width` by `height` cells, row 0 at the top."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells: dict[tuple[int, int], tuple[str, Tone | Paint]] = {}

    def put(self, row: int, column: int, text: str, tone: Tone | Paint = "value") -> None:
        """Writes a text over existing cells; parts outside the grid are cut off."""
        if 0 <= row < self.height:
            for at, sign in enumerate(text, column):
                if 0 <= at < self.width:
                    self._cells[row, at] = sign, tone

    def put_title(self, text: str, ellipsis: str) -> None:
        """Writes over the first row; a text that is longer ends in an ellipsis."""
        fits = len(text) <= self.width
        self.put(0, 0, text if fits else text[: self.width - 1] + ellipsis, "title")

    def is_free(self, row: int, column: int, width: int = 1) -> bool:
        """Whether `width` cells are blank and inside the grid."""
        return (
            0 <= row < self.height
            and column >= 0
            and column + width <= self.width
            and all((row, at) not in self._cells for at in range(column, column + width))
        )

    def lines(self) -> list[TextLine]:
        """The rows; neighbouring cells of the same tone are one text."""
        found: list[TextLine] = []
        for row in range(self.height):
            line: list[Put] = []
            text, start = "", 0
            tone: Tone | Paint = "value"
            for column in range(self.width + 1):
                cell = self._cells.get((row, column))
                if text and (cell is None or cell[1] != tone):
                    line.append(Put(start, text, tone))
                    text = ""
                if cell is not None:
                    if not text:
                        start, tone = column, cell[1]
                    text += cell[0]
            found.append(line)
        return found


def plain_lines(lines: Iterable[TextLine]) -> list[str]:
    """The lines as plain text."""
    found = []
    for line in lines:
        text = ""
        for put in sorted(line, key=lambda each: each.column):
            text = text.ljust(put.column)[: put.column] + put.text
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
