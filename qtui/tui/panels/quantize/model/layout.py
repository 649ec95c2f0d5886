"""The table of the Model view, and the picture below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui.report.evaluation.document import candidate_table, frontier_picture
from qtui.report.faces.columns import INDENT, ColumnRun, lay_out
from qtui.report.pictures.drawing import picture_lines
from qtui.report.pictures.glyphs import Brush
from qtui.screen.widgets.text_picture import (
    Canvas,
    Put,
    TextLine,
    Tone,
    paragraphs,
    window,
)
from qtui.tui.panels.quantize.model.run import EvaluationState, ModelRun
from qtui.tui.panels.quantize.model.sentences import beginning
from qtui_core.evaluation.figures import FIGURES
from qtui_core.evaluation.settings import ORIGINAL

#: Columns that a narrow screen leaves out, the first first. Those of the line under the cursor
#: stand below the table.
_SPARE: Final = [
    figure.title for figure in sorted(FIGURES, key=lambda each: each.spare) if figure.spare
]
#: The least lines of a picture below the table, and its largest height as a share of its width.
_PICTURE: Final = 13
_SLIM: Final = 0.38
#: The column of the names, after the marks.
_NAMES: Final = 3


def model_lines(run: ModelRun, parameters: int, canvas: Canvas, brush: Brush) -> Sequence[TextLine]:
    """The table, with the picture below it if there is room; or the picture alone."""
    picture = frontier_picture(run.rows)
    if picture is not None and run.picture_alone:
        return picture_lines(picture, canvas.width, canvas.height, brush)
    lines = table_lines(run, canvas)
    if not run.rows and run.state is not EvaluationState.RUNNING:
        return [*lines, [], *paragraphs(beginning(run, parameters), canvas.width)][: canvas.height]
    left = canvas.height - len(lines) - 1
    if picture is None or left < _PICTURE:
        return lines
    height = min(left, max(_PICTURE, int(canvas.width * _SLIM)))
    return [*lines, [], *picture_lines(picture, canvas.width, height, brush)]


def table_lines(run: ModelRun, canvas: Canvas) -> list[TextLine]:
    """The rows that are known, then the schemes that are not read yet; around the cursor if not all
    fit. Below them are the columns that do not fit, of the line under the cursor."""
    rows, glyphs, best = run.rows, canvas.glyphs, run.best
    waiting = run.missing if rows else (ORIGINAL, *run.missing)
    reading = run.reading.name if run.reading is not None else ""
    waits = {ORIGINAL, *run.asked} if run.state is EvaluationState.RUNNING else set()
    unread = [
        (name, "reads" if name == reading else "waits" if name in waits else "not read")
        for name in waiting
    ]
    part, left_out = _fitting(run, unread, canvas.width - _NAMES + INDENT)
    names = [*(row.name for row in rows), *waiting]
    cells = candidate_table(rows).rows if rows else ()
    foot: list[TextLine] = []
    if left_out and run.cursor < len(rows):
        text = ", ".join(f"{title} {cells[run.cursor][at]}" for at, title in left_out)
        foot.append([Put(_NAMES, f"{names[run.cursor]}: {text}", "quiet")])
    if len(rows) > 1:
        marks = f"{glyphs.on} frontier  {glyphs.off} dominated: another is no worse in bits and KL"
        foot.append([Put(_NAMES, marks, "quiet")])
    lines: list[TextLine] = [[Put(_NAMES, part.header[INDENT:], "heading")]]
    for at in window(len(names), run.cursor, canvas.height - 1 - len(foot)):
        known, here = at < len(rows), at == run.cursor
        mark = glyphs.on if names[at] in best else glyphs.off if known and at else " "
        tone: Tone = "best" if names[at] in best else "value" if known else "quiet"
        if known and rows[at].nonfinite:
            mark, tone = " ", "warning"
        if names[at] == reading:
            mark = glyphs.arrow
        text = part.rows[at][0][INDENT:].rstrip()
        line = [Put(0, glyphs.pointer if here else " ", "heading"), Put(1, mark, tone)]
        line.append(Put(_NAMES, text, "strong" if here and tone == "value" else tone, at))
        lines.append(line)
    return [*lines, *foot]


def _fitting(
    run: ModelRun, unread: Sequence[tuple[str, str]], width: int
) -> tuple[ColumnRun, list[tuple[int, str]]]:
    """The table in one part, with lines for schemes that have no row, and the (index, title) of the
    columns that are left out of it."""
    table = candidate_table(run.rows)
    blank = ("",) * (len(table.columns) - 2)
    rows = [*table.rows, *((*each, *blank) for each in unread)]
    kept = list(range(len(table.columns)))
    for title in ("", *_SPARE):
        kept = [at for at in kept if table.columns[at].title != title]
        columns = [table.columns[at] for at in kept]
        parts = list(lay_out(columns, [[row[at] for at in kept] for row in rows], width))
        if len(parts) == 1:
            break
    return parts[0], [(at, c.title) for at, c in enumerate(table.columns) if at not in kept]
