"""Estimate against measured, by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, headings, paragraphs, right
from qtui.tui.panels.train.levels import gap_of, gap_text, gap_tone
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView, how_to_begin, why_nothing
from qtui_core.live.compare import (
    RunBytes,
    by_phase,
    steps_needed,
    too_early,
)
from qtui_core.live.state import QUANTIZE, RunState, measured
from qtui_core.quantities import format_bytes

#: The cells before which columns end on a narrow canvas; on a wide one they are further right, as
#: names are written out.
ESTIMATE, MEASURED, GAP = 25, 36, 45
#: The cells between the end of a name and the end of the first column.
NAME: Final = 10
WIDER: Final = 17
_WIDE: Final = 80


class PhasesView(TrainView):
    """The peak of each phase and level, estimated and measured; before a run the estimate alone."""

    TITLE = "Phases"
    HELP = """\
**Phases**: estimate against measured by phase, with the gap: measured less estimated, as a share
of what was measured.
"""

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        if shown.there:
            return phase_lines(shown.state, canvas)
        return [
            *expected_lines(self.panel.shown, canvas),
            [],
            [Put(0, how_to_begin(self.panel), "quiet")],
        ][: canvas.height]


def wider_by(canvas: Canvas) -> int:
    return WIDER if canvas.width >= _WIDE else 0


def expected_lines(shown: Shown, canvas: Canvas) -> Sequence[TextLine]:
    """The lines before a run: the estimated peak of each phase."""
    answer = shown.answer
    if answer is None:
        return []
    lines: list[TextLine] = [heading("the most in", canvas)]
    for phase in answer.phases:
        lines.append(
            [
                Put(2, phase.name, "label"),
                *numbers(phase.allocated_bytes, None, canvas),
            ]
        )
    return lines


def phase_lines(state: RunState, canvas: Canvas) -> Sequence[TextLine]:
    """The peak of each phase: estimated, measured, and the gap; with bars if there is room."""
    rows = by_phase(state)
    if not rows:
        return paragraphs([why_nothing(state, "No phase is over yet.")], canvas.width)
    most = max(max(row.estimated or 0, row.measured or 0) for row in rows) or 1
    lines: list[TextLine] = [heading("the most in", canvas)]
    lines += [_phase(row, state, most, canvas) for row in rows]
    levels = _level_rows(state)
    if canvas.height > len(lines) + len(levels) + 2:
        most = max([most, *(max(row.estimated or 0, row.measured or 0) for row in levels)])
        lines += [[], heading("level", canvas)]
        lines += [_phase(row, state, most, canvas) for row in levels]
    for text in _remarks(state):
        if canvas.height > len(lines) + 1:
            lines += [[], [Put(0, shortened(text, canvas.width, canvas.glyphs.ellipsis), "quiet")]]
    return lines[: canvas.height]


def _remarks(state: RunState) -> Iterator[str]:
    """Remarks on rows whose estimate and measurement differ for a known reason."""
    if state.step and too_early(state) and steps_needed(state) > 1:
        yield "two whole steps are needed: an optimizer has no states in most of the first"
    if state.counted == "tensors" and state.measured(QUANTIZE) is not None:
        yield "load: on a CPU all weights lie there before they are quantized"


def _level_rows(state: RunState) -> list[RunBytes]:
    """The rows of the bytes between steps, and of the levels above the tensors."""
    found = measured(state)
    predicted = state.header.predicted if state.header is not None else None
    resident = None if predicted is None else predicted.resident_bytes
    rows = [RunBytes("resident", resident, found.resident_bytes)]
    levels = gap_of(state)
    rows += [RunBytes(each.name, each.estimated, each.measured) for each in levels]
    return [row for row in rows if row.measured is not None]


def heading(what: str, canvas: Canvas) -> TextLine:
    more = wider_by(canvas)
    estimate, measured = (-ESTIMATE - more, "estimate"), (-MEASURED - more, "measured")
    puts = headings((0, what), estimate, measured, (-GAP - more, "gap"))
    at, glyphs = GAP + more + 2, canvas.glyphs
    if canvas.width > at + 22:
        puts.append(Put(at, f"{glyphs.full} measured {glyphs.tick} estimate", "quiet"))
    return puts


def _phase(row: RunBytes, state: RunState, most: int, canvas: Canvas) -> TextLine:
    here = row.name == state.phase and not state.over
    failed = state.fault is not None and state.fault.fatal and state.fault.phase == row.name
    mark = canvas.glyphs.pointer if here else "!" if failed else " "
    # Phases of a recording may have any name: directly after "1", "2.5 MiB" would read "12.5 MiB".
    room = ESTIMATE + wider_by(canvas) - NAME - 2
    return [
        Put(0, mark, "warning" if failed else "heading"),
        Put(2, shortened(row.name, room, canvas.glyphs.ellipsis), "value" if here else "label"),
        *numbers(row.estimated, row.measured, canvas),
        *bars(row.estimated, row.measured, most, canvas),
    ]


def numbers(estimated: int | None, measured: int | None, canvas: Canvas) -> list[Put]:
    none, more = "–", wider_by(canvas)
    gap = gap_text(measured, estimated, canvas.glyphs.minus)
    return [
        right(ESTIMATE + more, none if estimated is None else format_bytes(estimated), "label"),
        right(MEASURED + more, none if measured is None else format_bytes(measured), "value"),
        right(GAP + more, gap, gap_tone(measured, estimated)),
    ]


def bars(estimated: int | None, measured: int | None, most: int, canvas: Canvas) -> list[Put]:
    """A bar of the measured bytes, with a tick at the estimate."""
    start = GAP + wider_by(canvas) + 2
    room = canvas.width - start - 1
    if room < 8:
        return []
    puts = [Put(start, canvas.glyphs.full * round(room * (measured or 0) / most), "bar")]
    if estimated is not None:
        at = min(room - 1, round(room * estimated / most))
        puts.append(Put(start + at, canvas.glyphs.tick, "expected"))
    return puts
