"""A sketch of what an empty view will show. It has no number that could be taken for a measured
one, and is called an example."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

from qtui.screen.widgets.text_picture import (
    Canvas,
    Draw,
    Put,
    TextLine,
    in_row,
    paragraphs,
    wrapped,
)
from qtui_core.dataclass import dataclass

Shape = Literal["step", "bell", "falling", "frontier", "roof", "bars", "table", "map"]

#: The least lines of a sketch with its title, and the most of a bar.
LEAST, THICKEST = 5, 6
_EIGHTHS: Final = 8
#: In place of a number.
_UNKNOWN: Final = "··"


@dataclass(frozen=True)
class Example:
    """What a view will show: its kind of picture, and the names of bars, or of columns."""

    shape: Shape
    names: tuple[str, ...] = ()


def with_example(
    words: Sequence[str], example: Example | None, canvas: Canvas, *, centre: bool = False
) -> list[TextLine]:
    """Paragraphs that say why there is nothing and which key changes that; below them the sketch,
    where there is room for it."""
    if centre:
        texts = [line for text in words for line in wrapped(text, canvas.width)]
        lines: list[TextLine] = [
            [Put(max(0, (canvas.width - len(text)) // 2), text, "quiet")] for text in texts
        ]
    else:
        lines = paragraphs(words, canvas.width)
    room = canvas.height - len(lines) - 1
    if example is None or room < LEAST:
        above = max(0, room // 2) if centre else 0
        return [*([] for _ in range(above)), *lines]
    title = f"{canvas.glyphs.baseline * 2} example "
    title += canvas.glyphs.baseline * max(0, canvas.width - len(title))
    sketch = _SHAPES[example.shape](example.names, canvas, room - 1)
    return [*lines, [], [Put(0, title, "quiet")], *(in_row([(row, "quiet")]) for row in sketch)]


def centred_example(text: str, example: Example) -> Draw:
    """A message in the middle of a picture, with the sketch of what would stand there below it."""
    return lambda canvas: with_example(text.split("\n"), example, canvas, centre=True)


def _columns(
    height_at: Callable[[float], float],
) -> Callable[[Sequence[str], Canvas, int], list[str]]:
    """A filled curve over the width; `height_at` takes a place from 0 to 1, as its result is."""

    def draw(names: Sequence[str], canvas: Canvas, room: int) -> list[str]:
        width, tall = canvas.width, room - 1
        heights = [height_at((x + 0.5) / width) * tall * _EIGHTHS for x in range(width)]
        rows = [
            "".join(
                canvas.glyphs.eighths[max(0, min(_EIGHTHS, round(height) - ground * _EIGHTHS))]
                for height in heights
            )
            for ground in range(tall - 1, -1, -1)
        ]
        return [*rows, canvas.glyphs.baseline * width]

    return draw


def _line(height_at: Callable[[float], float]) -> Callable[[Sequence[str], Canvas, int], list[str]]:
    """A line of dots over the width."""

    def draw(names: Sequence[str], canvas: Canvas, room: int) -> list[str]:
        width, tall = canvas.width, room - 1
        rows = [[" "] * width for _ in range(tall)]
        for x in range(width):
            at = (1 - height_at((x + 0.5) / width)) * (tall - 1)
            rows[max(0, min(tall - 1, round(at)))][x] = canvas.glyphs.dot
        return ["".join(row) for row in rows] + [canvas.glyphs.baseline * width]

    return draw


def _bars(names: Sequence[str], canvas: Canvas, room: int) -> list[str]:
    wide = max(map(len, names)) + 2
    longest = max(4, canvas.width - wide - len(_UNKNOWN) - 2)
    lines = max(1, room // len(names))
    thick = max(1, min(lines - 1, THICKEST))
    rows: list[str] = []
    for at, name in enumerate(names[:room]):
        bar = canvas.glyphs.full * max(1, round(longest * 0.8**at))
        rows += [f"{name.ljust(wide)}{bar} {_UNKNOWN}", *[" " * wide + bar] * (thick - 1)]
        rows += [""] * (min(lines, 2 * thick) - thick)
    return [row[: canvas.width] for row in rows[:room]]


def _table(names: Sequence[str], canvas: Canvas, room: int) -> list[str]:
    wide = max(10, canvas.width // len(names))
    heading = "".join(name.ljust(wide) for name in names)
    row = "".join(_UNKNOWN.ljust(wide) for _ in names)
    return [text[: canvas.width].rstrip() for text in (heading, *[row] * (room - 1))]


def _map(names: Sequence[str], canvas: Canvas, room: int) -> list[str]:
    """A map with two heavy columns."""
    shades, width = canvas.glyphs.shades, canvas.width
    heavy = width // 5, (2 * width) // 3
    return [
        "".join(
            shades[-1] if x in heavy else shades[(x * x * 7 + y * y * 13 + x * y) % 3]
            for x in range(width)
        )
        for y in range(room)
    ]


def _of_step(at: float) -> float:
    """What a step holds: growing forwards, sinking backwards, each layer with its own peak."""
    tooth = 0.12 * (1 - (at * 14) % 1) if at < 0.9 else 0.0
    return 0.2 + 0.65 * (1 - abs(2 * at - 0.95)) * (at < 0.95) + tooth


_SHAPES: Final[dict[Shape, Callable[[Sequence[str], Canvas, int], list[str]]]] = {
    "step": _columns(_of_step),
    "bell": _columns(lambda at: math.exp(-((6 * at - 3) ** 2) / 2)),
    "falling": _line(lambda at: 0.1 + 0.85 * math.exp(-4 * at) + 0.03 * math.sin(90 * at)),
    "frontier": _line(lambda at: 0.95 - 0.3 * int(at * 4) if at < 0.75 else 0.05),
    "roof": _line(lambda at: min(0.9, 0.1 + 1.6 * at)),
    "bars": _bars,
    "table": _table,
    "map": _map,
}
