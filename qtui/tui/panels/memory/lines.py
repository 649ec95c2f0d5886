"""The texts below the curve: the components of the peak, the largest savings, the GPUs that fit."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.engine.estimator.answers import Answer, Assessment
from qtui.screen.curve.legend import PARTS
from qtui.screen.plan.levels import VERDICTS
from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, right
from qtui_core.memory.advice.fit import Fit
from qtui_core.memory.replay.timeline import Group, grouped
from qtui_core.quantities import format_bytes

SIZE = 10


def number_lines(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """The components of the peak, the largest savings, and the GPUs that fit, side by side."""
    answer = shown.answer
    if answer is None or not shown.current:
        return []
    columns = [_made_of(answer, 37)]
    if shown.around is not None:
        width = min(60, canvas.width - 40) if canvas.width < 130 else 58
        columns.append(_savings(shown.around, width, canvas))
        if canvas.width >= 130:
            columns.append(_holding(shown.around.fits, canvas.glyphs.minus))
    return _beside(columns, [0, 40, 102], canvas.height)


def _beside(
    columns: Sequence[Sequence[TextLine]], starts: Sequence[int], height: int
) -> list[TextLine]:
    lines: list[TextLine] = []
    for y in range(min(height, max(map(len, columns), default=0))):
        line: list[Put] = []
        for column, start in zip(columns, starts, strict=False):
            for put in column[y] if y < len(column) else ():
                line.append(Put(start + put.column, put.text, put.tone))
        lines.append(line)
    return lines


def _made_of(answer: Answer, width: int) -> list[TextLine]:
    lines: list[TextLine] = [[Put(0, "at the peak", "heading")]]
    whole = answer.peak_allocated_bytes or 1
    for part, nbytes in _parts_of(answer):
        lines.append(
            [
                Put(0, f"{part.letter} {part.name}", "label"),
                right(width - 5, format_bytes(nbytes)),
                right(width, f"{nbytes / whole:.0%}", "quiet"),
            ]
        )
    return lines


def _parts_of(answer: Answer) -> Sequence[tuple[Group, int]]:
    """The parts of the peak with their bytes; before the whole answer, those of the curve."""
    if answer.components:
        return grouped((term.name, term.bytes) for term in answer.components)
    totals = answer.curve.totals
    peak = totals.index(max(totals)) if totals else 0
    found = [(part, row[peak]) for part, row in zip(PARTS, answer.curve.rows, strict=True) if row]
    return [(part, nbytes) for part, nbytes in found if nbytes]


def _savings(around: Assessment, width: int, canvas: Canvas) -> list[TextLine]:
    lines: list[TextLine] = [[Put(0, "what would save most", "heading")]]
    for line in around.advice:
        change = shortened(line.change, width - SIZE - 1, canvas.glyphs.ellipsis)
        lines.append([right(SIZE - 1, format_bytes(line.saves_bytes)), Put(SIZE, change, "label")])
    if not around.advice:
        words = "no single change saves much" if around.weighed else "not weighed"
        lines.append([Put(0, words, "label")])
    return lines


def _holding(fits: Sequence[Fit], minus: str) -> list[TextLine]:
    lines: list[TextLine] = [[Put(0, "GPUs", "heading")]]
    for fit in fits:
        word, tone = VERDICTS[fit.verdict]
        left = f"{'' if fit.headroom_bytes >= 0 else minus}{format_bytes(abs(fit.headroom_bytes))}"
        lines.append([Put(0, f"{word:5}", tone), right(16, left), Put(18, fit.gpu, "label")])
    return lines
