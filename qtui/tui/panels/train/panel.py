"""Panel 5: training steps beside their estimate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType

from qtui.screen.command_line import Command
from qtui.screen.messages import Resized
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.panel.view import view_keys, views_help
from qtui.screen.picker.paths import path_of, recording_picking
from qtui.screen.plan.fields import form_fields
from qtui.screen.plan.panel import PlanPanel
from qtui.screen.plan.shown import GpuChoice, Shown
from qtui.screen.run_process import DRAWN_SECONDS
from qtui.tui.panels.train.body import ControlButtons, TrainBody
from qtui.tui.panels.train.drawing import TrainPainter, controls_of, smaller
from qtui.tui.panels.train.export import run_data, run_table
from qtui.tui.panels.train.keys import ASKED, HELP, LATER_BINDINGS, TRAIN_BINDINGS
from qtui.tui.panels.train.recordings import recordings
from qtui.tui.panels.train.running import TrainRun
from qtui.tui.panels.train.sentences import before_run, first_of_all, going_on
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui.tui.panels.train.views.adapters_view import AdaptersView
from qtui.tui.panels.train.views.components_view import ComponentsView
from qtui.tui.panels.train.views.gap_view import GapView
from qtui.tui.panels.train.views.log_view import LogView
from qtui.tui.panels.train.views.loss_view import LossView
from qtui.tui.panels.train.views.phases_view import PhasesView
from qtui.tui.panels.train.views.ranges_view import RangesView
from qtui.tui.panels.train.views.run_view import RunView
from qtui_core.errors import UsageError
from qtui_core.live.compare import plan_of
from qtui_core.memory.plan.options import whole_number
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.models.quoting import printable

LARGEST = "largest"
LOCKED = "The plan cannot be changed while its run is shown; x stops the run."


class TrainPanel(PlanPanel):
    """Shows a plan with its estimate, and a run of it or a recording."""

    PANEL_ID = "train"
    TITLE = "Train"
    NUMBER = 5
    RUNS = True
    VIEWS = (
        RunView, PhasesView, ComponentsView, GapView, LossView, RangesView, LogView, AdaptersView,
    )  # fmt: skip
    HELP = HELP.format(views=views_help(VIEWS))
    BINDINGS: ClassVar[list[BindingType]] = [
        *TRAIN_BINDINGS, *view_keys(PANEL_ID, VIEWS), *LATER_BINDINGS,
    ]  # fmt: skip

    body: TrainBody
    view: TrainView

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.run = TrainRun(self)
        self.painter = TrainPainter(self)
        self._asking = ""
        """The key of ASKED that is being typed; "" while a value of the plan is typed."""

    def compose_body(self) -> ComposeResult:
        self.body = TrainBody(self.drawing, self.tabs)
        yield self.body

    def on_mount(self) -> None:
        self.set_interval(DRAWN_SECONDS, self.run.tick)

    @on(events.Unmount)
    async def _end_run(self) -> None:
        await self.run.process.end()

    @property
    def run_shown(self) -> RunShown:
        """The state of the run."""
        return self.run.shown

    @property
    def waits_for_engine(self) -> bool:
        return not self.run_shown.there  # a run does not use the estimator

    # Hooks of the shell

    def unfinished(self) -> str:
        return going_on(self.run_shown, self.shown.model) if self.run_shown.live else ""

    async def finish(self) -> None:
        self.run.stop()
        await self.run.process.finish()

    def activate(self) -> None:
        super().activate()
        self.body.focus_form()
        self.draw()

    def open_model(self, model: str) -> None:
        self.run.stop()
        if self.run_shown.player is None:
            self.run.forget()
        super().open_model(model)
        path, self.qtui.recording = self.qtui.recording, None
        if path is not None:
            self.run.open_recording(path)

    def copy_text(self) -> str | None:
        body, title = self.body, self.body.title_line
        head = "  ".join((title.subject, *title.details))
        return f"{head}\n{body.levels.text}\n\n{self.view.copy_text()}\n\n{self.sentence}"

    def command_line(self) -> Command:
        return self.run.command_line(self.view)

    def export_data(self) -> dict[str, Any] | None:
        return run_data(self.shown, self.run_shown, self.sentence)

    def export_table(self) -> Iterable[Sequence[object]] | None:
        state = self.run_shown.state
        return run_table(state) if state.recent else None

    def palette(self) -> Iterable[PaletteEntry]:
        if self.run_shown.live:
            yield PaletteEntry("run: Kill", "End its process at once.", self.run.process.child.kill)

    @on(Resized)
    def _part_resized(self, message: Resized) -> None:
        message.stop()
        if message.widget is self.body.title_line:
            self.painter.title()
        else:
            self.view.show_curve(self.run_shown)

    # Drawing

    def draw(self) -> None:
        self.painter.all()

    def focus_view(self) -> None:
        self.body.focus_form()

    def draw_form(self) -> None:
        """Draws the form with the plan of the run, or without a run with the user's plan."""
        header = self.run_shown.state.header
        if header is None:
            super().draw_form()
            return
        shown = Shown(header.model, plan=plan_of(header.plan), gpu=self.shown.gpu)
        fields = form_fields(shown)
        self.shown.knob = max(0, min(self.shown.knob, len(fields) - 1))
        self.body.form.show(fields, self.shown.knob)

    def meaning(self) -> str:
        run = self.run_shown
        if self.trouble and not run.there:
            return self.trouble
        said = before_run(self.shown, run)
        if run.there:
            said = first_of_all(run) or self.view.meaning(run)
        # A recording may be incomplete and still have correct content.
        return f"{run.complaint} {said}".strip()

    def other_subject(self) -> str:
        header = self.run_shown.state.header
        if header is None or self.run_shown.player is None:
            return ""
        return f"a recording of {printable(header.model)}"

    def action_floor(self) -> None:
        self.run_shown.from_zero = not self.run_shown.from_zero
        self.draw()

    # The run

    def action_run(self) -> None:
        run = self.run_shown
        if run.live:
            self.tell("A run is already under way; x stops it.")
        elif run.player is not None:
            run.player.restart()
            run.state = run.player.state
            self.draw()
        elif self.silence or self.phase is AskingPhase.LOST:
            self.action_restart()
        else:
            self.run.start()

    def action_pause(self) -> None:
        run = self.run_shown
        if run.player is not None:
            run.player.pause(not run.player.paused)
        elif run.live and (run.paused or run.waits_for in ("pausing", "one step")):
            run.wish = ""
            self.run.process.child.control("resume")
        elif run.live:
            run.wish = "pausing"
            self.run.process.child.control("pause")
        self.draw()

    def action_step(self) -> None:
        run = self.run_shown
        if run.live:
            run.wish = "one step"
            self.run.process.child.control("step")
            self.draw()
        else:
            self.run.start(hold=True)

    def action_stop(self) -> None:
        over = not self.run_shown.live
        (self.run.forget if over else self.run.stop)()
        self.draw()
        if over and not self.shown.current and self.known:
            self._estimate()

    def action_speed(self, by: int) -> None:
        player = self.run_shown.player
        if player is not None:
            player.faster(by)
            self.draw()

    def action_jump(self, by: int) -> None:
        self._jump(self.run_shown.state.step + by)

    def _jump(self, step: int) -> None:
        run = self.run_shown
        if run.player is not None:
            run.player.pause(True)
            run.player.jump(step)
            run.state = run.player.state
            self.draw()

    @on(ControlButtons.Pressed)
    async def _pressed(self, message: ControlButtons.Pressed) -> None:
        message.stop()
        await self.run_action(message.action)

    # Before a run: the largest batch that fits, if the plan does not fit

    def fill_views(self) -> None:
        answer, run = self.shown.answer, self.run_shown
        if answer is None or answer.fit is None or answer.fit.verdict == "fits":
            return
        if run.largest_of != self.shown.asked:
            self.do(self._find_largest, LARGEST)

    async def _find_largest(self) -> None:
        shown, run = self.shown, self.run_shown
        asked = shown.asked
        fitting = await self.largest(smaller(shown.plan.batch))
        if shown.asked == asked:
            run.largest, run.largest_of = fitting, asked
            self.draw()

    # The plan, which cannot be changed during its run

    def change(self, plan: RunPlan, gpu: GpuChoice | None, **options: bool) -> None:
        if self._locked():
            return
        self.run.forget()
        super().change(plan, gpu, **options)

    def action_turn(self, by: int) -> None:
        if not self._locked():
            super().action_turn(by)

    def _locked(self) -> bool:
        run = self.run_shown
        if run.live or run.player is not None:
            self.tell(LOCKED)
            return True
        return False

    def action_largest(self) -> None:
        largest = self.run_shown.largest
        if largest:
            self._set("batch", largest)

    def action_move(self, by: int) -> None:
        if self.body.has_form:
            self._choose_field(by)

    # Typing

    def action_enter(self) -> None:
        if not self._locked():
            self._asking = ""
            self._enter_field()

    def _ask(self, what: str, text: str) -> None:
        self._asking = what
        self.body.start_typing(ASKED[what], text)

    def action_ask_steps(self) -> None:
        steps = self.run_shown.steps
        self._ask("steps", "" if steps is None else str(steps))

    def action_ask_data(self) -> None:
        self._ask("data", self.run_shown.data or "")

    def action_ask_text(self) -> None:
        self._ask("text", self.run_shown.text)

    def action_ask_jump(self) -> None:
        self._ask("jump", str(self.run_shown.state.step))

    async def action_open(self) -> None:
        picking = recording_picking(sorted(recordings().glob("*.jsonl"), reverse=True))
        await self.pick(picking, lambda picked: self.run.open_recording(path_of(picking, picked)))

    def _take_typed(self, text: str) -> None:
        if not self._asking:
            super()._take_typed(text)
            return
        run, text = self.run_shown, text.strip()
        try:
            number = whole_number(text) if text and self._asking in ("steps", "jump") else None
            if number == 0 and self._asking == "steps":
                raise UsageError("A run takes at least one step.")
        except UsageError as error:
            self.tell(str(error))
            return
        asked, self._asking = self._asking, ""
        self.body.stop_typing()
        self.refusal = ""
        if asked == "steps":
            run.steps = number
        elif asked == "data":
            run.data = text or None
        elif asked == "text":
            run.text = text
        elif asked == "jump" and number is not None:
            self._jump(number)
        self.draw()

    def action_back(self) -> None:
        if not self.body.typing and self.waits_for_engine and self.end_silent():
            return
        self.body.stop_typing()
        self._asking = ""
        self.refusal = ""
        if not self.body.has_form:
            self.show_view(self.view_of(RunView))
        self.draw()

    def key_word(self, action: str) -> str:
        if action not in ("pause", "stop"):
            return super().key_word(action)
        return next(b.word for b in controls_of(self.run_shown) if b.action == action).capitalize()

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        run, replayed = self.run_shown, self.run_shown.player is not None
        if action == "back":
            silent = bool(self.silence) and self.waits_for_engine
            return silent or self.body.typing or not self.body.has_form or bool(self.refusal)
        if self.body.typing:
            return False
        if action in ("speed", "jump", "ask_jump"):
            return replayed
        if action == "run":
            return not run.live
        if action == "pause":
            return run.live or replayed
        if action == "stop":
            return run.there
        if action in ("open", "ask_data", "ask_text"):
            return not run.live
        if action in ("step", "ask_steps"):
            return not replayed and (action == "step" or not run.live)
        if action in ("enter", "turn", "device", "usual"):
            seen = self.body.has_form or action != "enter"
            return seen and not (run.live or replayed)
        if action == "largest":
            return bool(run.largest) and run.largest_of == self.shown.asked and not run.there
        if action in ("undo", "redo"):
            known = self.history.undoes if action == "undo" else self.history.redoes
            return known and not (run.live or replayed)
        return super().offers(action, parameters)
