"""The value in the chosen format beside the pinned one, as labelled lines."""

from __future__ import annotations

from collections.abc import Callable

from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine
from qtui.tui.panels.formats.rows import compact, fields_of, fitted
from qtui_core.formats import Exact
from qtui_core.formats.pair import relative_text
from qtui_core.formats.table import FormatRow

_LABEL = 10


def pair_lines(chosen: FormatRow, pinned: FormatRow, canvas: Canvas) -> list[TextLine]:
    """Bits, value, errors, neighbours and range of both, in as many blocks beside each other as
    fit, each under the names of the formats. What does not fit at the bottom is cut off."""
    blocks = 2 if canvas.width > 60 else 1
    width = canvas.width // blocks
    room = (width - _LABEL) // 2 - 1
    count = min(max(1, canvas.height - 1), -(-len(_LINES) // blocks))
    lines: list[TextLine] = [[] for _ in range(count + 1)]
    for block in range(blocks):
        left = block * width
        names = (chosen.format.title, f"{pinned.format.title} (P)")
        for place, name in enumerate(names):
            at = left + _LABEL + place * (room + 1)
            lines[0] = [*lines[0], Put(at, shortened(name, room), "heading")]
        for y, (label, text) in enumerate(_LINES[block * count : (block + 1) * count], 1):
            puts = [Put(left, label, "label")]
            for place, row in enumerate((chosen, pinned)):
                shown = shortened(text(row, room), room, canvas.glyphs.ellipsis)
                puts.append(Put(left + _LABEL + place * (room + 1), shown))
            lines[y] = [*lines[y], *puts]
    return lines


def _bits(row: FormatRow, _room: int) -> str:
    fields = [field.bits for field in fields_of(row) if field.kind != "padding"]
    return " ".join(fields) if row.code is not None else "no code"


def _error(row: FormatRow, room: int) -> str:
    sign = "+" if row.error and row.error > 0 else ""
    return "none" if row.error is None else sign + compact(row.error, room - 1)


def _number(value: Exact | None, room: int) -> str:
    return "none" if value is None else compact(value, room)


#: Each line with its label, and its text for a row in the room of a column.
_LINES: tuple[tuple[str, Callable[[FormatRow, int], str]], ...] = (
    ("bits", _bits),
    ("value", lambda row, room: "no code" if row.value is None else fitted(row.value, room)),
    ("error", _error),
    ("relative", lambda row, _: relative_text(row)),
    ("ulp", lambda row, room: _number(row.ulp, room)),
    ("below", lambda row, room: _number(row.below, room)),
    ("above", lambda row, room: _number(row.above, room)),
    ("smallest", lambda row, room: _number(row.format.min_positive, room)),
    ("largest", lambda row, room: _number(row.format.max, room)),
    ("stored in", lambda row, _: f"{row.format.storage_bits} bits"),
)
