"""Panel 4: where the memory of a training step goes, before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from qtui.engine.estimator.answers import CaseFigures, ModelFacts
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.export import curve_table, panel_data
from qtui.screen.plan.levels import headline, level_lines
from qtui.screen.plan.panel import PlanPanel
from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES, ViewName
from qtui.screen.widgets.text_picture import Canvas, TextPicture
from qtui.tui.panels.memory.body import MemoryBody
from qtui.tui.panels.memory.cases_view import draw_cases
from qtui.tui.panels.memory.keys import HELP, MEMORY_BINDINGS
from qtui.tui.panels.memory.lines import number_lines
from qtui.tui.panels.memory.map import MapFiller
from qtui.tui.panels.memory.parts_view import draw_parts, part_lines
from qtui.tui.panels.memory.sentences import sentence_of
from qtui.tui.panels.memory.trace import TRACING, Trace
from qtui.tui.panels.memory.views import draw_gpus, draw_map, draw_savings
from qtui_core.memory.advice.cases import CASES
from qtui_core.memory.plan.run_plan import RunPlan

FIGURES = "figures"
DRAWERS = {
    ViewName.PARTS: draw_parts,
    ViewName.SAVINGS: draw_savings,
    ViewName.MAP: draw_map,
    ViewName.GPUS: draw_gpus,
    ViewName.CASES: draw_cases,
}
#: Views with lines, or cells, to choose from.
LISTS = (ViewName.SAVINGS, ViewName.MAP, ViewName.GPUS, ViewName.CASES)


class MemoryPanel(PlanPanel):
    """The estimate of a plan in several views, and beside it a trace and the worked cases."""

    PANEL_ID = "memory"
    TITLE = "Memory"
    NUMBER = 4
    HELP = HELP
    BINDINGS: ClassVar[list[BindingType]] = MEMORY_BINDINGS

    body: MemoryBody

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._own_plan = RunPlan()
        self.trace = Trace(self)
        self.map = MapFiller(self)

    def compose_body(self) -> ComposeResult:
        self.body = MemoryBody(self.drawing)
        yield self.body

    # Estimating

    def _open_subject(self) -> None:
        self.map.stop()
        super()._open_subject()

    def _estimate(self) -> None:
        self.map.stop()
        self.trace.forget()
        super()._estimate()

    def not_built_in(self, facts: ModelFacts) -> None:
        self.trace.forget()
        super().not_built_in(facts)

    def failed(self, sentence: str) -> None:
        if self.shown.current:  # a trace failed, and the estimate is as true as it was
            self.phase = AskingPhase.READY
            self.tell(sentence)
        else:
            super().failed(sentence)

    def refused(self, sentence: str) -> None:
        facts = self.shown.facts
        if facts is not None and facts.unknown:
            super().failed(sentence)
        else:
            super().refused(sentence)

    def fill_views(self) -> None:
        """What only one view shows is asked for when it is there."""
        shown = self.shown
        if (
            shown.view is ViewName.MAP
            and self.phase is AskingPhase.READY
            and shown.answer is not None
        ):
            self.map.start()
        if shown.view is ViewName.CASES and not shown.cases:
            shown.cases = CASES
            self.do(self._figures, FIGURES)

    async def _figures(self) -> None:
        await self.feed.cases(self._case)

    def _case(self, found: CaseFigures) -> None:
        shown = self.shown
        shown.figures = {**shown.figures, found.key: found.figures}
        if shown.view is ViewName.CASES:
            self.draw()

    # Showing

    def draw(self) -> None:
        shown, body = self.shown, self.body
        self.draw_form()
        body.tabs.active = list(ViewName).index(shown.view)
        body.title_line.subject, body.title_line.details = headline(shown)
        body.levels.show(partial(level_lines, shown))
        body.numbers.show(partial(number_lines, shown))
        if shown.view is ViewName.CASES:
            body.show_text(partial(draw_cases, shown))
        elif self.trouble:
            body.show_message(self.trouble)
        elif self.trace.goes_on and shown.answer is None:
            body.show_message(TRACING)
        elif shown.view is ViewName.STEP:
            body.show_curve()
            if shown.answer is None:
                body.curve.clear()
            else:
                before = shown.before.curve if shown.before else None
                fit, gpu = shown.answer.fit, shown.gpu
                capacity = fit.capacity_bytes if fit else None
                body.curve.show(shown.answer.curve, before, capacity, gpu.label if gpu else "")
        elif shown.current and (shown.around is not None or shown.view is ViewName.MAP):
            body.show_text(partial(DRAWERS[shown.view], shown))
        self.draw_activity()
        self.speak()
        self.refresh_bindings()

    def draw_activity(self) -> None:
        text = self.trace.activity
        if not text and self.busy:
            text = "estimating"
        self.body.title_line.activity = text

    def meaning(self) -> str:
        shown = self.shown
        told = "" if shown.view is ViewName.CASES and shown.cases else self.trouble
        if not told and self.trace.goes_on and shown.answer is None:
            told = TRACING
        return told or sentence_of(shown, self.drawing.glyphs)

    # What the shell asks for

    def activate(self) -> None:
        super().activate()
        self._focus_view()

    def maximise_target(self) -> Widget | None:
        return self.body.main

    def drawing_changed(self) -> None:
        self.body.redraw()

    def copy_text(self) -> str | None:
        if self.shown.answer is None:
            return None
        title, _ = self.body.title_line.subject, self.body.title_line.details
        picture = self.body.curve if self.body.main is self.body.curve else self.body.picture
        return f"{title}\n{self.body.levels.text}\n\n{picture.text}\n\n{self.sentence}"

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown, self.sentence)

    def export_table(self) -> Iterable[Sequence[object]] | None:
        shown = self.shown
        return curve_table(shown.answer) if shown.answer is not None and shown.current else None

    # Views

    def show_view(self, place: int) -> None:  # type: ignore[override]
        self._show_view(list(ViewName)[place])

    def _show_view(self, view: ViewName) -> None:
        self.shown.view, self.shown.line = view, 0
        if view is ViewName.MAP:
            plan = self.shown.plan
            self.shown.cell = (
                _nearest(MAP_BATCHES, plan.batch), _nearest(MAP_SEQUENCES, plan.sequence)
            )  # fmt: skip
        if view is ViewName.GPUS and self.shown.around is not None and self.shown.gpu is None:
            verdicts = [fit.verdict for fit in self.shown.around.fits]
            self.shown.line = verdicts.index("fits") if "fits" in verdicts else 0
        self.refusal = ""
        self.fill_views()
        self.draw()
        self._focus_view()

    def _focus_view(self) -> None:
        if self.shown.view in LISTS:
            self.body.focus_picture()
        else:
            self.body.focus_form()

    @property
    def _in_list(self) -> bool:
        return self.shown.view in LISTS and self.body.picture.has_focus

    # Moving about

    def action_move(self, by: int) -> None:
        shown = self.shown
        if shown.view is ViewName.PARTS and self.body.picture.has_focus:
            shown.line = max(0, min(shown.line + by, self._hidden_parts))
            self.draw()
            return
        if not self._in_list:
            if self.body.has_form:
                self._choose_field(by)
            return
        self.refusal = ""
        if shown.view is ViewName.MAP:
            row, column = shown.cell
            shown.cell = (max(0, min(row + by, len(MAP_BATCHES) - 1)), column)
        else:
            shown.line = max(0, min(shown.line_of(self._lines) + by, self._lines - 1))
        self.draw()

    @property
    def _hidden_parts(self) -> int:
        """How many lines of the parts there is no room for."""
        width, height = self.body.picture.size
        lines = part_lines(self.shown, Canvas(width, height, self.drawing.glyphs))
        return max(0, len(lines) - height + 1) if len(lines) > height else 0

    @property
    def _lines(self) -> int:
        shown, around = self.shown, self.shown.around
        if shown.view is ViewName.CASES:
            return len(shown.cases)
        if around is None:
            return 1
        return max(1, len(around.advice if shown.view is ViewName.SAVINGS else around.fits))

    @on(TextPicture.Picked)
    def _picked(self, message: TextPicture.Picked) -> None:
        """A click chooses a line or a cell, two take it as Enter does."""
        message.stop()
        shown, pick = self.shown, message.pick
        if shown.view not in LISTS:
            return
        self.refusal = ""
        self.body.focus_picture()
        if message.twice:
            # What the first one chose: a list moves to have that in its middle, and another line
            # is under the pointer by now.
            self._enter_line()
            return
        if isinstance(pick, tuple):
            shown.cell = pick
        else:
            shown.line = pick
        self.draw()

    # Changing the plan

    def action_step(self, by: int) -> None:
        if self._in_list and self.shown.view is ViewName.MAP:
            row, column = self.shown.cell
            self.shown.cell = (row, max(0, min(column + by, len(MAP_SEQUENCES) - 1)))
            self.draw()
        else:
            self.action_turn(by)

    # Typing, and what else Enter does

    def action_enter(self) -> None:
        if self._in_list:
            self._enter_line()
        else:
            self._enter_field()

    def _enter_line(self) -> None:
        """Take what the cursor is on."""
        shown, around = self.shown, self.shown.around
        if shown.view is ViewName.CASES:
            cases = shown.cases
            self._open_case(cases[shown.line_of(len(cases))].key if cases else "")
        elif shown.view is ViewName.MAP:
            row, column = shown.cell
            batch, length = MAP_BATCHES[row], MAP_SEQUENCES[column]
            self._change(replace(shown.plan, batch=batch, sequence=length), shown.gpu)
        elif around is None or shown.answer is None:
            return
        elif shown.view is ViewName.GPUS and around.fits:
            name = around.fits[shown.line_of(len(around.fits))].gpu
            choice = next((each for each in shown.gpus if each.label == name), shown.gpu)
            shown.line = 0  # where the chosen GPU stands
            self._choose_gpu(choice)
        elif around.advice:
            line = around.advice[shown.line_of(len(around.advice))]
            advised, now = line.plan, shown.answer.plan
            changes = {
                field.name: getattr(advised, field.name)
                for field in fields(RunPlan)
                if getattr(advised, field.name) != getattr(now, field.name)
            }
            self._change(replace(shown.plan, **changes), shown.gpu)

    # Worked cases, traces, and starting again

    def _open_case(self, key: str) -> None:
        case = next((each for each in self.shown.cases if each.key == key), None)
        if case is None:
            return
        if not self.shown.case:
            self._own_plan = self.shown.plan
        self.shown.case, self.shown.plan = key, case.plan
        self._past.clear()
        self.shown.view = ViewName.STEP
        self._open_subject()
        self._focus_view()

    def action_own(self) -> None:
        self.shown.case, self.shown.plan = "", self._own_plan
        self._past.clear()
        self._adopt()
        self._open_subject()

    def action_trace(self) -> None:
        if self.trace.goes_on:
            self.trace.stop()
        else:
            self.trace.start()

    def action_back(self) -> None:
        if self.body.typing:
            self.body.stop_typing()
        elif self.end_silent():
            return
        elif self.trace.goes_on:
            self.trace.stop()
        else:
            self.body.focus_form()
        self.draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        if not self.is_mounted:
            return True
        if action == "back":
            busy = self.trace.goes_on or bool(self.silence)
            return self.body.typing or self._in_list or busy
        if self.body.typing:
            return False
        if action == "restart":
            return self.can_restart
        if action == "own":
            return bool(self.shown.case)
        if action == "undo":
            return bool(self._past)
        if action == "trace":
            facts = self.shown.facts
            idle = self.phase in (AskingPhase.READY, AskingPhase.FAILED)
            return facts is not None and facts.traceable and (idle or self.trace.goes_on)
        return True


def _nearest(values: Sequence[int], value: int) -> int:
    """The place of the largest that is not above it."""
    return max((at for at, each in enumerate(values) if each <= value), default=0)
