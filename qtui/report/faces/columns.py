"""Lays out a table in cells of a terminal without losing content if the terminal is narrow.

Columns that do not fit continue in a further part below, with the key columns repeated. A cell that
is too long for any part is folded into several lines. Key cells are shortened at the front, because
tensor names differ at their ends, but different names stay different.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from qtui.report.document import Column, Table
from qtui_core.dataclass import dataclass

INDENT = 2
GAP = 2
#: The share of the width that a key column may take before its cells are shortened.
KEY_SHARE = 0.45
#: The least cells for the other columns, however long the keys are.
OTHERS = 22


@dataclass(frozen=True)
class ColumnRun:
    """Some columns that fit side by side, as finished lines: the header, and one line for each row,
    or several if a cell is folded."""

    header: str
    rows: tuple[tuple[str, ...], ...]
    width: int


def lay_out(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> Iterator[ColumnRun]:
    """Yields the parts of a table, in lines of at most `width` cells if possible."""
    cells = [list(row) for row in rows]
    sizes = [
        max([cell_len(column.title), *(cell_len(row[i]) for row in cells)])
        for i, column in enumerate(columns)
    ]
    keys = [i for i, column in enumerate(columns) if column.key]
    room = width - INDENT
    if sum(sizes) + GAP * (len(sizes) - 1) > room:
        limit = max(12, int(room * KEY_SHARE / max(1, len(keys))))
        if len(keys) == 1:
            names = [row[keys[0]] for row in cells]
            limit = _telling_apart(names, limit, max(limit, room - OTHERS))
        for i in keys:
            sizes[i] = min(sizes[i], limit)
            for row in cells:
                row[i] = shorten(row[i], sizes[i])
    longest = max(12, room - sum(sizes[i] + GAP for i in keys))
    sizes = [size if i in keys else min(size, longest) for i, size in enumerate(sizes)]
    for chosen in _pack(sizes, keys, room):
        if all(columns[i].key or columns[i].spare for i in chosen) and len(columns) > len(chosen):
            continue
        yield _part([columns[i] for i in chosen], [[r[i] for i in chosen] for r in cells],
                    [sizes[i] for i in chosen])  # fmt: skip


def _telling_apart(names: Sequence[str], least: int, most: int) -> int:
    """The least width at which different names are still different when shortened; `most` if there
    is none."""
    different = len(set(names))
    low, high = least, most
    while low < high:
        middle = (low + high) // 2
        if len({shorten(name, middle) for name in names}) == different:
            high = middle
        else:
            low = middle + 1
    return low


def _pack(sizes: Sequence[int], keys: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yields the column indices of each part: the keys, and at least one more, as many as fit."""
    others = [i for i in range(len(sizes)) if i not in keys]
    used = sum(sizes[i] + GAP for i in keys)
    part: list[int] = []
    free = room - used
    for i in others:
        if part and sizes[i] > free:
            yield sorted([*keys, *part])
            part, free = [], room - used
        part.append(i)
        free -= sizes[i] + GAP
    yield sorted([*keys, *part])


def _part(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], sizes: Sequence[int]
) -> ColumnRun:
    def line(cells: Sequence[str]) -> str:
        padded = (
            " " * (size - cell_len(cell)) + cell
            if column.numeric
            else cell + " " * (size - cell_len(cell))
            for cell, column, size in zip(cells, columns, sizes, strict=True)
        )
        return " " * INDENT + (" " * GAP).join(padded)

    def lines(cells: Sequence[str]) -> tuple[str, ...]:
        if not folds:
            return (line(cells),)
        folded = [fold(cell, size) for cell, size in zip(cells, sizes, strict=True)]
        return tuple(line(each) for each in zip_longest(*folded, fillvalue=""))

    folds = any(
        cell_len(cell) > size for row in rows for cell, size in zip(row, sizes, strict=True)
    )
    header = line([c.title for c in columns])
    return ColumnRun(header, tuple(lines(row) for row in rows), cell_len(header))


def fold(text: str, size: int) -> list[str]:
    """`text` in lines of at most `size` cells, cut between words, or inside a longer word."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= size:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if lines[-1] and cell_len(lines[-1] + character) > size:
                lines.append("")
            lines[-1] += character
    return lines


def shorten(text: str, size: int) -> str:
    """`text` in at most `size` cells: if it is longer, an ellipsis and its end."""
    if cell_len(text) <= size:
        return text
    # No character is wider than two cells or narrower than none: cut before measuring.
    text = text[-4 * size :]
    while cell_len(text) > size - 1:
        text = text[1:]
    return f"…{text}"


def with_bars(table: Table, bars: Sequence[str]) -> tuple[list[Column], list[list[str]]]:
    """The columns and rows of a table, with the drawn bars as the last column if it has bars."""
    columns, rows = list(table.columns), [list(row) for row in table.rows]
    if bars:
        columns.append(Column(table.bar_title, spare=True))
        rows = [[*row, bar] for row, bar in zip(rows, bars, strict=True)]
    return columns, rows


#: Characters beyond ASCII that reports use, each one cell wide: signs, rules and bars.
_SIGNS: Final = "–—×−≈σ…·±²≤≥→∞½" + "─│" + "▏▎▍▌▋▊▉█░▒▓"
_SINGLE: Final = frozenset(map(chr, range(0x20, 0x7F))) | frozenset(_SIGNS)


def cell_len(text: str) -> int:
    """The number of cells that a text takes in a terminal."""
    if _SINGLE.issuperset(text):
        return len(text)
    from rich.cells import cell_len as measured

    return measured(text)
