"""The text face for a stream that is no terminal: lines without colour, the same as those of
qtui.report.faces.text, but without rich, whose import takes longer than some reports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TextIO

from qtui.report.document import Document, Facts, HeatMap, Picture, Plotted, Table
from qtui.report.faces.columns import GAP, INDENT, cell_len, lay_out, with_bars
from qtui.report.faces.heatmap import draw_lines

#: The width for a pipe, which has none of its own: tables are hardly ever folded.
PIPE_WIDTH = 400
BAR_CELLS = 16
#: The width of a picture in cells if there is no terminal.
PICTURE_WIDTH = 100

_EIGHTHS = " ▏▎▍▌▋▊▉█"
#: Characters beyond ASCII that reports use -> their replacements under `--ascii`.
_ASCII = str.maketrans(
    {"–": "-", "—": "-", "×": "x", "−": "-", "≈": "~", "σ": "sigma", "…": "...", "·": ".",
     "±": "+-", "²": "^2", "≤": "<=", "≥": ">=", "→": "->", "∞": "inf", "½": "1/2"}
)  # fmt: skip


def is_plain(stream: TextIO, color: str) -> bool:
    """Whether a stream gets plain text: it is no terminal, no colour was requested, and COLUMNS is
    not set."""
    wide = not os.environ.get("COLUMNS", "").isdecimal()
    return wide and color in ("auto", "none") and not stream.isatty()


def to_plain(document: Document, *, ascii: bool = False) -> str:
    """The whole report as plain text."""
    text = "".join(f"{line.rstrip()}\n" for line in _lines(document, ascii))
    return to_ascii(text) if ascii else text


def _lines(document: Document, ascii: bool) -> Iterator[str]:
    yield document.title
    for section in document.sections:
        yield ""
        yield section.title
        for block in section.blocks:
            if isinstance(block, Facts):
                yield from _facts(block)
            elif isinstance(block, Table):
                yield from _table(block, ascii)
            elif isinstance(block, HeatMap):
                yield from (" " * INDENT + line for line in draw_lines(block, ascii=ascii))
                yield from _note(block.note)
            elif isinstance(block, Plotted):
                yield ""
                yield from (" " * INDENT + line for line in plotted(block, ascii))
            elif not isinstance(block, Picture):
                yield " " * INDENT + block
    yield ""
    yield document.conclusion


def plotted(block: Plotted, ascii: bool) -> list[str]:
    """The lines of a picture, without colours."""
    from qtui.report.pictures.cells import plain_lines
    from qtui.report.pictures.drawing import picture_lines
    from qtui.report.pictures.glyphs import Brush

    return plain_lines(picture_lines(block.picture, PICTURE_WIDTH, None, Brush(ascii=ascii)))


def _facts(facts: Facts) -> Iterator[str]:
    width = max((cell_len(name) for name, _ in facts.pairs), default=0)
    for name, value in facts.pairs:
        yield " " * INDENT + name + " " * (width - cell_len(name) + GAP) + value


def _table(table: Table, ascii: bool) -> Iterator[str]:
    columns, rows = with_bars(table, [draw_bar(share, ascii) for share in table.bars])
    for part in lay_out(columns, rows, PIPE_WIDTH):
        yield ""
        yield part.header
        yield " " * INDENT + ("-" if ascii else "─") * (part.width - INDENT)
        yield from (line for lines in part.rows for line in lines)
    yield from _note(table.note)


def _note(note: str) -> Iterator[str]:
    if note:
        yield ""
        yield " " * INDENT + note


def to_ascii(text: str) -> str:
    """The text in ASCII: known characters have replacements, others become escapes."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def draw_bar(share: float, ascii: bool, cells: int = BAR_CELLS) -> str:
    """A horizontal bar that fills a share, 0 to 1, of `cells` characters."""
    share = min(1.0, max(0.0, share))
    if ascii:
        return "#" * round(share * cells)
    eighths = round(share * cells * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
