"""The components of the peak, the terms from there to the process, and the phases, with bars."""

from __future__ import annotations

from qtui.engine.estimator.answers import Answer
from qtui.screen.curve.legend import part_of
from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import (
    Canvas,
    Put,
    TextLine,
    Tone,
    headings,
    paragraphs,
    right,
)
from qtui.tui.panels.memory.view import MemoryView
from qtui_core.memory.formulas.terms import Term
from qtui_core.quantities import format_bytes

#: The column of the bars, the least width of the formulas, and of a bar.
BARS, FORMULAS, LEAST_BAR = 36, 40, 5


class PartsView(MemoryView):
    """The components and the phases; the view scrolls if they do not fit."""

    TITLE = "Parts"
    HELP = """\
**Parts**: the components of the peak with their formulas, what the process takes beyond them, and
the phases.
"""

    def draw(self, shown: Shown, canvas: Canvas) -> list[TextLine]:
        """The lines; if they do not fit, those from the chosen one on."""
        lines = part_lines(shown, canvas)
        room = canvas.height - 1
        if len(lines) <= canvas.height or room < 1:
            return lines
        first = shown.line_of(len(lines) - room + 1)
        last = min(len(lines), first + room)
        more = f"lines {first + 1} to {last} of {len(lines)}; up and down show the others"
        return [*lines[first:last], [Put(0, shortened(more, canvas.width), "heading")]]

    def count(self, shown: Shown) -> int:
        """The number of positions that the view can scroll to."""
        picture = self.panel.body.picture
        width, height = picture.size
        lines = part_lines(shown, Canvas(width, height, picture.drawing.glyphs))
        return max(0, len(lines) - height + 1) + 1 if len(lines) > height else 1


def part_lines(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """All lines; none before the whole answer is known."""
    answer = shown.answer
    if answer is None or answer.stage != "full":
        return []
    whole = answer.peak_allocated_bytes
    lines: list[TextLine] = [
        _heading(canvas, "at the peak", "basis"),
        *(_term(term, part_of(term.name).letter, whole, canvas) for term in answer.components),
        [Put(0, "allocated", "best"), right(34, format_bytes(whole), "best")],
        *(_term(term, " ", whole, canvas) for term in answer.beyond),
        [
            Put(0, "process", "best"),
            right(34, format_bytes(answer.process_bytes), "best"),
            Put(BARS, f"may be off by {format_bytes(answer.uncertainty_bytes)}", "quiet"),
        ],
    ]
    notes = shown.around.notes if shown.around is not None else ()
    after = [
        _heading(canvas, "the most in each phase", "operation"),
        *(_phase(answer, at, canvas) for at in range(len(answer.phases))),
        *paragraphs(notes, canvas.width, "expected"),
    ]
    apart = len(lines) + 1 + len(after) <= canvas.height  # room for a blank line
    return [*lines, *([[]] if apart else []), *after]


def _heading(canvas: Canvas, title: str, last: str) -> TextLine:
    bars = _bar_room(canvas)
    return headings((0, title), (BARS + 1 + bars, last))


def _bar_room(canvas: Canvas) -> int:
    room = canvas.width - BARS - 1 - FORMULAS
    return min(30, room) if room >= LEAST_BAR else 0


def _bar(nbytes: int, whole: int, canvas: Canvas) -> str:
    room = _bar_room(canvas)
    cells = canvas.glyphs.full * round(room * min(1.0, nbytes / max(1, whole)))
    return cells or (canvas.glyphs.dot if nbytes and room else "")


def _term(term: Term, letter: str, whole: int, canvas: Canvas) -> TextLine:
    more = f"{term.basis}  {term.formula}"
    start = BARS + 1 + _bar_room(canvas)
    return [
        Put(0, letter, "heading"),
        Put(2, shortened(term.name, 23, canvas.glyphs.ellipsis), "label"),
        right(34, format_bytes(term.bytes)),
        Put(BARS, _bar(term.bytes, whole, canvas), "bar"),
        Put(start, shortened(more, canvas.width - start, canvas.glyphs.ellipsis), "quiet"),
    ]


def _phase(answer: Answer, at: int, canvas: Canvas) -> TextLine:
    phase = answer.phases[at]
    here = phase.name == answer.peak_phase
    tone: Tone = "best" if here else "value"
    start = BARS + 1 + _bar_room(canvas)
    words = ("the peak  " if here else "") + phase.operation
    return [
        Put(0, canvas.glyphs.pointer if here else " ", "best"),
        Put(2, phase.name, "label"),
        right(34, format_bytes(phase.allocated_bytes), tone),
        Put(BARS, _bar(phase.allocated_bytes, answer.peak_allocated_bytes, canvas), "bar"),
        Put(start, shortened(words, canvas.width - start, canvas.glyphs.ellipsis), "quiet"),
    ]
