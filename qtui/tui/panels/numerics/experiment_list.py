"""The left side of the Numerics panel: the list of experiments, and the help of a setting."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, right, window, wrapped
from qtui.tui.panels.numerics.lab_run import LabRun
from qtui.tui.panels.numerics.shown import NumericsShown
from qtui_core.lab.catalog import EXPERIMENTS, cost_text


def experiment_lines(
    shown: NumericsShown, live: LabRun | None, focused: bool, canvas: Canvas
) -> Sequence[TextLine]:
    """The experiments with their cost; a mark at those that were run, another where the last run or
    a part of it failed, an arrow at the one that runs now."""
    glyphs = canvas.glyphs
    lines: list[TextLine] = []
    for place in window(len(EXPERIMENTS), shown.place, canvas.height):
        each = EXPERIMENTS[place]
        here = place == shown.place
        runs = live is not None and live.experiment is each
        kept = shown.runs.get(each.name, [])
        failed = bool(kept) and kept[-1].failed and not runs
        mark = glyphs.arrow if runs else "!" if failed else glyphs.on if kept else " "
        cost = cost_text(each.seconds)
        room = canvas.width - len(cost) - 4
        name = shortened(each.name, room, glyphs.ellipsis).ljust(room)
        tone: Tone = "cursor" if here and focused else "strong" if here else "value"
        lines.append(
            [
                Put(0, glyphs.pointer if here else " ", "heading"),
                Put(1, mark, "warning" if failed else "best"),
                Put(3, name, tone, place),
                right(canvas.width, cost, "quiet", place),
            ]
        )
    return lines


def help_lines(shown: NumericsShown, on_form: bool, canvas: Canvas) -> Sequence[TextLine]:
    """The help of the chosen setting if the form has the focus; else the experiment's question."""
    experiment = shown.experiment
    text = f"{experiment.question} {cost_text(experiment.seconds)}."
    if on_form and experiment.settings:
        text = shown.row.help
        if shown.row.allowed:
            text += f" Of {', '.join(shown.row.allowed)}."
    lines = wrapped(text, canvas.width)
    if len(lines) > canvas.height > 0:
        rest = " ".join(lines[canvas.height - 1 :])
        lines[canvas.height - 1 :] = [shortened(rest, canvas.width, canvas.glyphs.ellipsis)]
    return [[Put(0, line, "quiet")] for line in lines]
