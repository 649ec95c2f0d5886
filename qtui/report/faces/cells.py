"""The width of a text in cells of a terminal. It uses rich only for unusual characters, because
importing rich takes longer than laying out a report."""

from __future__ import annotations

from typing import Final

#: Characters beyond ASCII that reports use, each one cell wide: signs, rules and bars.
_SIGNS: Final = "–—×−≈σ…·±²≤≥→∞½" + "─│" + "▏▎▍▌▋▊▉█░▒▓"
_SINGLE: Final = frozenset(map(chr, range(0x20, 0x7F))) | frozenset(_SIGNS)


def cell_len(text: str) -> int:
    """The number of cells that a text takes in a terminal."""
    if _SINGLE.issuperset(text):
        return len(text)
    from rich.cells import cell_len as measured

    return measured(text)
