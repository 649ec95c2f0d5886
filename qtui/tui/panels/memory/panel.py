"""Panel 4: the memory of a training step, predicted before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from qtui.engine.estimator.answers import Assessment
from qtui.screen.command_line import Command
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.panel.keys import MANY
from qtui.screen.panel.view import view_keys, views_help
from qtui.screen.plan.export import curve_table, panel_data
from qtui.screen.plan.history import History
from qtui.screen.plan.levels import headline, level_lines
from qtui.screen.plan.panel import PlanPanel
from qtui.screen.widgets.text_picture import TextPicture
from qtui.tui.panels.memory.body import MemoryBody
from qtui.tui.panels.memory.cases_view import CasesView, case_picking
from qtui.tui.panels.memory.fits_view import FitsView
from qtui.tui.panels.memory.keys import HELP, LATER_BINDINGS, MEMORY_BINDINGS
from qtui.tui.panels.memory.lines import number_lines
from qtui.tui.panels.memory.map_view import MAP, MapView
from qtui.tui.panels.memory.parts_view import PartsView
from qtui.tui.panels.memory.savings_view import SavingsView
from qtui.tui.panels.memory.step_view import StepView
from qtui.tui.panels.memory.trace import Trace
from qtui.tui.panels.memory.view import MemoryView
from qtui_core.memory.advice.cases import CASES, WorkedCase
from qtui_core.memory.plan.options import BATCHES
from qtui_core.memory.plan.run_plan import RunPlan

LARGEST = "largest"
#: What acts on the line or the cell under the cursor of a view.
OF_LINES = ("enter", "step", "line_end")


class MemoryPanel(PlanPanel):
    """Shows the estimate of a plan in several views, or a trace or a worked case in its place."""

    PANEL_ID = "memory"
    TITLE = "Memory"
    NUMBER = 4
    VIEWS = (StepView, PartsView, SavingsView, MapView, FitsView, CasesView)
    HELP = HELP.format(views=views_help(VIEWS))
    BINDINGS: ClassVar[list[BindingType]] = [
        *MEMORY_BINDINGS,
        *view_keys(PANEL_ID, VIEWS),
        *LATER_BINDINGS,
    ]

    body: MemoryBody
    view: MemoryView

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._own_plan = RunPlan()
        self.trace = Trace(self)

    def compose_body(self) -> ComposeResult:
        self.body = MemoryBody(self.drawing, self.tabs)
        yield self.body

    # Estimating

    def _open_subject(self) -> None:
        self.give_up(MAP)
        super()._open_subject()

    def _estimate(self) -> None:
        self.give_up(MAP)
        self.trace.forget()
        super()._estimate()

    def failed(self, sentence: str) -> None:
        if self.shown.current:  # only a trace failed; the estimate is still correct
            self.trace.refused()
            self.phase = AskingPhase.READY
            self.tell(sentence)
        else:
            super().failed(sentence)

    def refused(self, sentence: str) -> None:
        if self.shown.current:
            self.failed(sentence)
        else:
            super().refused(sentence)

    def take_around(self, around: Assessment) -> None:
        super().take_around(around)
        self.trace.start_by_itself()

    def fill_views(self) -> None:
        self.view.fill(self.shown)

    # Showing

    def draw(self) -> None:
        shown, body = self.shown, self.body
        self.draw_form()
        body.title_line.subject, body.title_line.details = headline(shown)
        body.levels.show(partial(level_lines, shown))
        body.numbers.show(partial(number_lines, shown))
        notice = self._notice
        if notice:
            body.show_message(self.way_out if self.trouble else notice)
        elif self.view.ready(shown):
            self.view.show(shown)
        self.draw_activity()
        self.speak()
        self.refresh_bindings()

    def draw_activity(self) -> None:
        text = self.trace.activity
        if not text and self.busy:
            text = "estimating"
        self.body.title_line.activity = text

    @property
    def _notice(self) -> str:
        """The text in place of the view: why there is no estimate; empty for the worked cases,
        which need none."""
        if isinstance(self.view, CasesView):
            return ""
        return self.trouble

    @property
    def _is_empty(self) -> bool:
        """Whether the view has no lines, not even those of the plan before."""
        shown = self.shown
        missing = bool(self._notice) or shown.answer is None
        return missing and not self.view.ready(shown)

    def draw_curve(self) -> None:
        """Draws the curve of the step, as far as it is known."""
        curve, shown, answer = self.body.curve, self.shown, self.shown.answer
        if answer is None:
            curve.clear()
            return
        before = shown.before.curve if shown.before else None
        capacity = answer.fit.capacity_bytes if answer.fit else None
        curve.show(answer.curve, before, capacity, shown.gpu.label if shown.gpu else "")

    def meaning(self) -> str:
        return self._notice or self.view.meaning(self.shown)

    def other_subject(self) -> str:
        case = next((each for each in self.shown.cases if each.key == self.shown.case), None)
        return "" if case is None else f"the worked case {case.title}"

    # Hooks of the shell

    def activate(self) -> None:
        super().activate()
        self.focus_view()

    def copy_text(self) -> str | None:
        if self.shown.answer is None:
            return None
        title = self.body.title_line.subject
        picture = self.body.curve if self.body.main is self.body.curve else self.body.picture
        return f"{title}\n{self.body.levels.text}\n\n{picture.text}\n\n{self.sentence}"

    def command_line(self) -> Command:
        shown, answer = self.shown, self.shown.answer
        if shown.case:
            return "No command estimates a worked case, only a model."
        traced = ("--trace",) * (answer is not None and shown.current and answer.origin == "trace")
        return self.view.command_line_of(shown, *traced)

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown, self.sentence)

    def export_table(self) -> Iterable[Sequence[object]] | None:
        shown = self.shown
        return curve_table(shown.answer) if shown.answer is not None and shown.current else None

    # The cursor

    def focus_view(self) -> None:
        if self.view.CURSOR:
            self.body.focus_picture()
        else:
            self.body.focus_form()

    @property
    def _in_list(self) -> bool:
        return self.view.CURSOR and self.screen.focused is self.body.picture

    def action_move(self, by: int) -> None:
        if self.body.picture.has_focus and self.view.move(self.shown, by):
            self.refusal = ""
            self.draw()
        elif self.body.has_form:
            self._choose_field(by)

    @on(TextPicture.Picked)
    def _picked(self, message: TextPicture.Picked) -> None:
        """A click chooses a line or a cell; a double click acts like Enter."""
        message.stop()
        shown, pick = self.shown, message.pick
        if not self.view.CURSOR:
            return
        self.refusal = ""
        self.body.focus_picture()
        if message.twice:
            # Takes what the first click chose: the list has scrolled since then, so that another
            # line may be under the pointer.
            self.view.enter(shown)
            return
        if isinstance(pick, tuple):
            shown.cell = pick
        else:
            shown.line = pick
        self.draw()

    def action_step(self, by: int) -> None:
        if self._in_list and self.view.step(self.shown, by):
            self.draw()
        else:
            self.action_turn(by)

    def key_word(self, action: str) -> str:
        if self._in_list and action == "enter":
            return self.view.ENTERS
        if self._in_list and action == "step(-1)":
            return "Move"
        return super().key_word(action)

    def action_line_end(self, side: int) -> None:
        if self._in_list and self.view.step(self.shown, side * MANY):
            self.draw()

    def action_enter(self) -> None:
        if self._in_list:
            self.view.enter(self.shown)
        else:
            self._enter_field()

    # The largest batch

    def action_largest(self) -> None:
        self.do(self._take_largest, LARGEST)

    async def _take_largest(self) -> None:
        """Takes the largest batch that fits: the largest step of the form first, then those up to
        the next step."""
        shown, asked = self.shown, self.shown.asked
        found = await self.largest(BATCHES)
        beyond = next((step for step in BATCHES if step > found), found)
        found = await self.largest(range(found + 1, beyond)) or found
        if shown is not self.shown or shown.asked != asked:
            return
        if found in (0, shown.plan.batch):
            which = "Not even one sequence" if not found else f"No more than this batch of {found}"
            self.tell(f"{which} of {shown.wanted.sequence:,} tokens fits.")
        else:
            self._set("batch", found)

    # Worked cases and traces

    def open_case(self, case: WorkedCase) -> None:
        """Opens a worked case in place of the model."""
        if not self.shown.case:
            self._own_plan = self.shown.plan
        self.shown.case, self.shown.plan = case.key, case.plan
        self._of_case, self._undone = History(), ""
        self.show_view(self.view_of(StepView))
        self._open_subject()

    async def action_cases(self) -> None:
        await self.pick(case_picking(self.shown), lambda at: self.open_case(CASES[int(at)]))

    def action_own(self) -> None:
        self.shown.case, self.shown.plan, self._undone = "", self._own_plan, ""
        self._adopt()
        self._open_subject()

    def action_trace(self) -> None:
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

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        if action == "back":
            busy = self.trace.goes_on or bool(self.silence)
            return self.body.typing or self._in_list or busy
        if self.body.typing:
            return False
        if action in OF_LINES and self._in_list and self._is_empty:
            return False
        if action == "line_end":
            return self._in_list and self.view.COLUMNS
        if action in ("step", "enter") and not self._in_list:
            return self.body.has_form  # nobody changes what is not seen
        if action == "step":
            return self.view.COLUMNS
        if action == "own":
            return bool(self.shown.case)
        if action == "largest":
            answer = self.shown.answer
            return answer is not None and answer.fit is not None and self.shown.current
        if action in ("undo", "redo"):
            return self.history.undoes if action == "undo" else self.history.redoes
        if action == "trace":
            facts = self.shown.facts
            idle = self.phase in (AskingPhase.READY, AskingPhase.FAILED) and not self.trace.goes_on
            return facts is not None and facts.traceable and idle
        return super().offers(action, parameters)
