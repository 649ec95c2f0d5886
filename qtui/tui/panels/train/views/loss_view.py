"""The loss over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from qtui.report.pictures.cells import ACROSS
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.curve.dots import Track, cells_of_track
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, right
from qtui.tui.panels.train.sentences import loss_words, progress
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui_core.live.state import RunState

#: The columns left of the line, for its highest and its lowest value.
AXIS = 7


class LossView(TrainView):
    """The loss as a line."""

    TITLE = "Loss"
    HELP = "**Loss**: over the steps.\n"

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        """The first and the last loss in words, and all losses as a line, with gaps at losses that
        are not numbers."""
        state, width, glyphs = shown.state, canvas.width, canvas.glyphs
        words = shortened(_words(state, glyphs), width - 5, glyphs.ellipsis)
        lines: list[list[Put]] = [[Put(0, "loss", "heading"), Put(5, words, "quiet")]]
        known = [loss for loss in state.losses if _is_number(loss)]
        tall = canvas.height - 2
        if state.header is None:
            return [*lines, *self.nothing(shown, "", replace(canvas, height=tall))]
        if len(known) < 2 or tall < 2 or width < AXIS + 8:
            return lines
        low, high = min(known), max(known)
        last = max(2, (state.header.steps if state.header else 0) or 0, state.steps[-1].step)
        track = Track("loss", "thick", _points(state, low, last, width - AXIS))
        span = max(high - low, 1e-12 + abs(high) * 1e-6)
        cells = cells_of_track(track, tall, span, ascii=glyphs.full == "#")
        labels = {0: f"{low:.3g}", tall - 1: f"{high:.3g}"}
        for row in range(tall - 1, -1, -1):
            line = [right(AXIS - 1, labels.get(row, ""), "quiet")]
            line += [Put(AXIS + x, sign, "best") for (y, x), sign in cells.items() if y == row]
            lines.append(line)
        return [*lines, [Put(AXIS, "1", "quiet"), right(width, f"step {last:,}", "quiet")]]

    def meaning(self, shown: RunShown) -> str:
        state = shown.state
        return " ".join(filter(None, (progress(shown), loss_words(state), _learns(state))))


def _points(state: RunState, low: float, last: int, width: int) -> tuple[float | None, ...]:
    """The points of the line: each loss less the lowest, from the first step to the last."""
    points: list[float | None] = [None] * (width * ACROSS)
    for taken in state.steps:
        if _is_number(taken.loss):
            points[(taken.step - 1) * (len(points) - 1) // (last - 1)] = taken.loss - low
    return tuple(points)


def _words(state: RunState, glyphs: Glyphs) -> str:
    known = [loss for loss in state.losses if _is_number(loss)]
    lost = sum(loss is not None and not _is_number(loss) for loss in state.losses)
    if not state.steps:
        return "after the first step"
    if not known:
        return "no number in any step" if lost else "none: an inference"
    if lost:
        return f"no number in {lost} of {len(state.steps)}"
    return (
        f"{known[0]:.3f}" if len(known) == 1 else f"{known[0]:.3f} {glyphs.arrow} {known[-1]:.3f}"
    )


def _is_number(loss: float | None) -> TypeGuard[float]:
    return loss is not None and math.isfinite(loss)


def _learns(state: RunState) -> str:
    """The sentence about the loss."""
    known = [loss for loss in state.losses if loss is not None]
    if len(known) < 2 or not all(map(math.isfinite, known)):
        return ""
    if known[-1] < known[0]:
        return "It learns; a real run saves what it learned, this one measures."
    if not state.over:
        return ""
    return "It does not learn yet: : takes more steps, --data another text."
