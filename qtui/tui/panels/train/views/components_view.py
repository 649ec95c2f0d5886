"""Estimate against measured, by component."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.screen.curve.legend import part_of
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine
from qtui.tui.panels.train.sentences import why_it_differs
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui.tui.panels.train.views.phases_view import ESTIMATE, NAME, bars, heading, numbers, wider_by
from qtui_core.live.compare import RunBytes, by_component
from qtui_core.memory.replay.record import Phase
from qtui_core.memory.replay.timeline import PLACES


class ComponentsView(TrainView):
    """The components at the peak of the step, and after each phase."""

    TITLE = "Parts"
    HELP = "**Parts**: the same by component.\n"

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        """The components, for as many phases as fit."""
        state = shown.state
        header = state.header
        predicted = header.predicted if header is not None else None
        if predicted is None:
            return self.nothing(shown, "", canvas)
        lines: list[TextLine] = []
        blocks = [(predicted.peak_phase, True)]
        blocks += [(name, False) for name in (Phase.BETWEEN, Phase.FORWARD, Phase.BACKWARD)]
        for phase, peak in blocks:
            rows = by_component(state, phase, peak=peak)
            more: list[TextLine] = [[]] if lines else []
            block = [*more, *_block(phase, peak, rows, canvas)] if rows else []
            if len(lines) + len(block) > canvas.height and lines:
                break
            lines += block
        if not lines:
            return self.nothing(shown, "No phase of the estimate is over yet.", canvas)
        return lines[: canvas.height]

    def meaning(self, shown: RunShown) -> str:
        return why_it_differs(shown) or super().meaning(shown)


def _block(phase: str, peak: bool, rows: Sequence[RunBytes], canvas: Canvas) -> list[TextLine]:
    title = f"at the peak of {phase}" if peak else f"after {phase}"
    most = max(max(row.estimated or 0, row.measured or 0) for row in rows) or 1
    name = ESTIMATE + wider_by(canvas) - NAME
    title = shortened(title, name + 1, canvas.glyphs.ellipsis)
    lines: list[TextLine] = [heading(title, canvas)]
    for row in rows:
        letter = part_of(row.name).letter if row.name in PLACES else " "
        lines.append(
            [
                Put(0, letter, "heading"),
                Put(2, shortened(row.name, name - 2, canvas.glyphs.ellipsis), "label"),
                *numbers(row.estimated, row.measured, canvas),
                *bars(row.estimated, row.measured, most, canvas),
            ]
        )
    whole = [sum(row.estimated or 0 for row in rows), sum(row.measured or 0 for row in rows)]
    lines.append([Put(2, "all", "best"), *numbers(whole[0], whole[1], canvas)])
    return lines
