"""The table of the current run, and its notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qtui.report.faces.columns import INDENT, lay_out
from qtui.report.lab.document import findings_table
from qtui.screen.panel.keys import key_of
from qtui.screen.panel.view import View
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, paragraphs, wrapped
from qtui.tui.panels.numerics.shown import NumericsShown
from qtui_core.lab.results import Findings

if TYPE_CHECKING:
    from qtui.tui.panels.numerics.panel import NumericsPanel

_TONES: dict[str, Tone] = {"bad": "warning", "warn": "warning", "good": "best", "dim": "quiet"}


class TableView(View[NumericsShown]):
    """All rows and columns of the table; the view scrolls."""

    TITLE = "Table"
    HELP = """
**Table**: all figures, and notes on what is emulated or left out. An export writes it as CSV.
"""
    CURSOR = True

    panel: NumericsPanel

    def draw(self, shown: NumericsShown, canvas: Canvas) -> Sequence[TextLine]:
        """The lines of the table from `shown.top` on."""
        result = shown.run.result if shown.run else None
        if result is None:
            words = (
                f"There is no table yet: {key_of(self.panel, 'numerics.run')} runs the experiment."
            )
            return paragraphs([words], canvas.width)
        lines = table_lines(result.findings, canvas.width, None)
        for note in result.findings.notes:
            lines += [[], *([Put(0, line, "quiet")] for line in wrapped(note, canvas.width))]
        shown.top = max(0, min(shown.top, len(lines) - canvas.height))
        return lines[shown.top : shown.top + canvas.height]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        run = self.panel.shown.run
        return action == "move" and run is not None and run.result is not None


def table_lines(found: Findings, width: int, height: int | None) -> list[TextLine]:
    """The table as lines, columns that do not fit in parts below. Where there are more lines than
    `height`, the last says so."""
    table = findings_table(found)
    lines: list[TextLine] = []
    tones = table.tones or ("",) * len(table.rows)
    for part in lay_out(table.columns, table.rows, width + INDENT):
        if lines:
            lines.append([])
        lines.append([Put(0, part.header[INDENT:], "label")])
        for texts, tone in zip(part.rows, tones, strict=True):
            lines += [[Put(0, text[INDENT:], _TONES.get(tone, "value"))] for text in texts]
    if height is not None and len(lines) > height:
        left = len(lines) - height + 1
        lines = lines[: max(0, height - 1)]
        lines.append([Put(0, f"and {left} lines more: v goes to the table", "quiet")])
    return lines
