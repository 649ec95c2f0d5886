"""How many cells of a terminal a text takes: asked of rich only where it is not plain to see, for
importing rich and its tables takes longer than laying out a report."""

from __future__ import annotations

from typing import Final

#: What reports write themselves besides ASCII, each a cell wide: signs, rules and bars.
_SIGNS: Final = "–—×−≈σ…·±²≤≥→∞½" + "─│" + "▏▎▍▌▋▊▉█░▒▓"
_SINGLE: Final = frozenset(map(chr, range(0x20, 0x7F))) | frozenset(_SIGNS)


def cell_len(text: str) -> int:
    """Cells that a text takes in a terminal."""
    if _SINGLE.issuperset(text):
        return len(text)
    from rich.cells import cell_len as measured

    return measured(text)
