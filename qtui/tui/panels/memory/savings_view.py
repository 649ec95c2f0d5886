"""The memory that each change would save, and a cure for each way to run out of memory."""

from __future__ import annotations

from dataclasses import fields, replace

from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone, headings, right, window
from qtui.tui.panels.memory.view import MemoryView
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.quantities import format_bytes


class SavingsView(MemoryView):
    """A list of changes, the largest saving first."""

    TITLE = "Savings"
    HELP = """\
**Savings**: what each change would save, the largest saving first, and a cure for each way to run
out of memory.
"""
    CURSOR = True
    ENTERS = "Make"

    def draw(self, shown: Shown, canvas: Canvas) -> list[TextLine]:
        """The changes, with the chosen one marked; then the cures."""
        around = shown.around
        if around is None or not shown.current:
            return []
        advice = around.advice
        nothing = "nothing in the plan" if around.weighed else "not known"
        cures = [
            [
                Put(0, shortened(cure.kind, 13, ""), "label"),
                right(24, format_bytes(cure.needs_bytes)),
                right(36, format_bytes(cure.saves_bytes) if cure.change else "–"),
                Put(38, shortened(cure.change or nothing, canvas.width - 38), "value"),
            ]
            for cure in around.cures
        ]
        room = canvas.height - len(cures) - 3
        if room < 4:
            cures, room = [], canvas.height - 1
        wide = max((len(line.change) for line in advice), default=0)
        cost = max((len(line.cost) for line in advice), default=0)
        beside = 13 + max(23, min(wide, max(46, canvas.width - 13 - cost)))  # the costs' column
        wide = beside - 13 if canvas.width - beside > 12 else canvas.width - 11
        costs = [(beside, "costs")] if wide == beside - 13 else []
        lines: list[TextLine] = [
            headings((-9, "saves"), (11, "change (Enter makes it)"), *costs),
        ]
        at, ellipsis = shown.line_of(len(advice)), canvas.glyphs.ellipsis
        for index in window(len(advice), at, room):
            line = advice[index]
            tone: Tone = "cursor" if index == at else "value"
            lines.append(
                [
                    Put(0, canvas.glyphs.pointer if index == at else " ", "heading"),
                    right(9, format_bytes(line.saves_bytes)),
                    Put(11, shortened(line.change, wide, ellipsis), tone, index),
                    *(
                        Put(column, shortened(line.cost, canvas.width - column, ellipsis), "quiet")
                        for column, _ in costs
                    ),
                ]
            )  # fmt: skip
        if not advice:
            unknown = "savings are not known: a trace covers one plan"
            words = "no single change of the plan saves much" if around.weighed else unknown
            lines.append([Put(11, words, "label")])
        if cures:
            lines += [
                [],
                headings((0, "runs out in"), (-24, "needs"), (-36, "saved by"), (38, "the cure")),
                *cures,
            ]  # fmt: skip
        return lines

    def count(self, shown: Shown) -> int:
        return max(1, len(shown.around.advice)) if shown.around is not None else 1

    def enter(self, shown: Shown) -> None:
        """Changes the options that the chosen line names; the user's other options stay."""
        if shown.around is None or shown.answer is None or not shown.around.advice:
            return
        advised = shown.around.advice[shown.line_of(len(shown.around.advice))].plan
        changes = {
            field.name: getattr(advised, field.name)
            for field in fields(RunPlan)
            if getattr(advised, field.name) != getattr(shown.answer.plan, field.name)
        }
        self.panel.change(replace(shown.plan, **changes), shown.gpu)
