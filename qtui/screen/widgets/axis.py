"""Numbers along an axis: few enough to read, never touching each other."""

from __future__ import annotations

from collections.abc import Callable

LINES_BETWEEN_ROW_LABELS = 5


def row_labels(lines: int, row_of: Callable[[int], int]) -> dict[int, str]:
    """Line -> label, from the first line on, evenly spaced."""
    return {line: f"{row_of(line):,}" for line in range(0, lines, LINES_BETWEEN_ROW_LABELS)}


def column_labels(width: int, at: int, here: int, column_of: Callable[[int], int]) -> str:
    """One line of `width` characters: `here` under character `at`, and around it as many labels as
    fit, each at the position of its column, without duplicates."""
    line = [" "] * width
    free = [True] * width
    placed = {here}

    def place(start: int, text: str) -> None:
        start = min(start, width - len(text))
        if start < 0 or not all(free[start : start + len(text)]):
            return
        line[start : start + len(text)] = text
        for x in range(max(0, start - 2), min(width, start + len(text) + 2)):
            free[x] = False

    place(at, f"{here:,}")
    spacing = max(len(f"{column_of(max(0, width - 1)):,}") + 4, 12)
    for x in range(0, width, spacing):
        column = column_of(x)
        if column not in placed:
            placed.add(column)
            place(x, f"{column:,}")
    return "".join(line)
