"""Panel 6: experiments in training numerics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from qtui.engine.estimator.answers import ModelFacts
from qtui.engine.estimator.requests import SubjectRequest
from qtui.engine.lab.client import WORKER
from qtui.screen.command_line import DEMO
from qtui.screen.panel.asking import OPENING, AskingPanel
from qtui.screen.panel.feed import Feed
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.panel.keys import moved
from qtui.screen.panel.view import view_keys, views_help
from qtui.screen.picker.paths import path_of, recording_picking
from qtui.screen.plan.form import PlanForm
from qtui.screen.run_process import DRAWN_SECONDS
from qtui.screen.widgets.task_title import BAR
from qtui.screen.widgets.text_picture import TextPicture
from qtui.tui.panels.numerics.body import NumericsBody
from qtui.tui.panels.numerics.experiment_list import experiment_lines, help_lines
from qtui.tui.panels.numerics.export import (
    command_words,
    panel_data,
    panel_picture,
    panel_table,
    panel_text,
)
from qtui.tui.panels.numerics.keys import FORM_BINDINGS, HELP, RUN_BINDINGS
from qtui.tui.panels.numerics.lab_run import LabPhase, LabRun
from qtui.tui.panels.numerics.picture_view import PictureView
from qtui.tui.panels.numerics.recordings import lab_recordings, newest_first
from qtui.tui.panels.numerics.running import ExperimentRuns
from qtui.tui.panels.numerics.runs_view import RunsView
from qtui.tui.panels.numerics.sentences import sentence_of, title_note
from qtui.tui.panels.numerics.shown import NumericsShown, form_fields, stepped
from qtui.tui.panels.numerics.table_view import TableView
from qtui_core.errors import ModelError, UsageError
from qtui_core.lab.catalog import EXPERIMENTS
from qtui_core.lab.settings import Value
from qtui_core.models.quoting import printable

#: Seconds that the panel is shown before it starts a process ahead.
WARM_SECONDS: Final = 0.4
#: Cells that the title has for how far a run is: the longest of its phases, and the bar.
_PROGRESS: Final = max(map(len, LabPhase)) + len(" 100% ") + BAR


class NumericsPanel(AskingPanel):
    """Runs experiments, and shows their pictures, tables and runs."""

    PANEL_ID = "numerics"
    TITLE = "Numerics"
    ENGINE = "estimator"
    NUMBER = 6
    VIEWS = (PictureView, TableView, RunsView)
    HELP = HELP.format(views=views_help(VIEWS))
    BINDINGS: ClassVar[list[BindingType]] = [
        *RUN_BINDINGS,
        *view_keys(PANEL_ID, VIEWS),
        *FORM_BINDINGS,
    ]
    COMMAND: ClassVar[Sequence[str]] = WORKER
    """The child that runs an experiment."""

    def compose_body(self) -> ComposeResult:
        self.shown = NumericsShown(self.qtui.model)
        self.runs = ExperimentRuns(self, self.COMMAND)
        self.set_interval(DRAWN_SECONDS, self.runs.tick)
        self.body = NumericsBody(self.drawing, self.tabs)
        yield self.body

    @on(events.Unmount)
    async def _end_runs(self) -> None:
        await self.runs.process.end()

    # Hooks of the shell

    def activate(self) -> None:
        self.screen.set_focus(self.body.list)
        self.draw()
        self.runs.list_earlier()
        self.set_timer(WARM_SECONDS, self.runs.warm)

    def open_model(self, model: str) -> None:
        self.shown.model, self.shown.missing_weights = model, ""
        if model != DEMO:
            self.do(self._read_model, OPENING)
        self.draw()

    async def _read_model(self) -> None:
        """Learns whether the model has weights, before a process is asked to run on it."""
        asked = SubjectRequest(model=self.shown.model)
        try:
            facts = await Feed(self.engine).ask(ModelFacts, "open", asked)
        except (ModelError, UsageError):
            return  # what cannot be read here is named by the run, which needs less of it
        self.shown.missing_weights = facts.missing_weights
        self.draw()

    def maximise_target(self) -> Widget | None:
        return self.body.picture

    def copy_text(self) -> str | None:
        return panel_text(self.shown)

    def command_line(self) -> tuple[str, ...]:
        shown, run = self.shown, self.shown.run
        if run is None:
            return command_words(shown.experiment, shown.settings, shown.model)
        return command_words(run.experiment, run.settings, run.model)

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown, self.sentence)

    def export_table(self) -> Iterable[Sequence[object]] | None:
        return panel_table(self.shown)

    def export_picture(self) -> str | None:
        return panel_picture(self.shown)

    def unfinished(self) -> str:
        run = self.runs.live
        return f"The experiment {run.experiment.name} still runs." if run is not None else ""

    async def finish(self) -> None:
        self.runs.stop()
        await self.runs.process.finish()

    def palette(self) -> Iterable[PaletteEntry]:
        for place, each in enumerate(EXPERIMENTS):
            yield PaletteEntry(
                f"numerics: {each.name}", each.question, partial(self._choose, place)
            )

    # Choosing

    def _choose(self, place: int) -> None:
        """Chooses an experiment. The mark in the list is painted at once, and what stands beside it
        once that is on the screen: it takes several times as long."""
        self.refusal = ""
        self.shown.choose(place)
        self._draw_list()
        self.call_after_refresh(self._draw_chosen, self.shown.place)

    def _draw_chosen(self, place: int) -> None:
        if place == self.shown.place:  # the next key has not come before it
            self.runs.list_earlier()
            self.draw()

    def action_move(self, by: int) -> None:
        shown, focused = self.shown, self.screen.focused
        if focused is self.body.form:
            shown.knob = moved(shown.knob, by, max(1, len(shown.experiment.settings)))
            if not self.refusal:  # it changes nothing else, and no key
                self._draw_left()
                return
            self.refusal = ""
        elif focused is self.body.picture and isinstance(self.view, RunsView):
            self._show_run(by)
        elif focused is self.body.picture and isinstance(self.view, TableView):
            shown.top = max(0, shown.top + by)
        else:
            self._choose(moved(shown.place, by, len(EXPERIMENTS)))
            return
        self.draw()

    def _show_run(self, by: int) -> None:
        kept, run = self.shown.kept, self.shown.run
        if run is not None:
            self.shown.show(kept[max(0, min(kept.index(run) + by, len(kept) - 1))])

    @on(TextPicture.Picked)
    def _picked(self, message: TextPicture.Picked) -> None:
        message.stop()
        if not isinstance(message.pick, int):
            return
        if self.screen.focused is self.body.list:
            self._choose(message.pick)
        elif isinstance(self.view, RunsView) and message.pick < len(self.shown.kept):
            self.shown.show(self.shown.kept[message.pick])
            self.draw()

    @on(PlanForm.FieldClicked)
    def _field_clicked(self, message: PlanForm.FieldClicked) -> None:
        message.choose(self)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._draw_left()

    def key_word(self, action: str) -> str:
        on_form = self.screen.focused is self.body.form
        if action == "enter" and not on_form:
            return "Settings"
        if action == "turn(-1)":
            return "Change" if on_form else "Picture"
        if action == "move(-1)" and self.screen.focused is self.body.picture:
            return "Scroll" if isinstance(self.view, TableView) else "Run"
        return super().key_word(action)

    # Settings

    def action_turn(self, by: int) -> None:
        if self.screen.focused is self.body.picture and isinstance(self.view, PictureView):
            self.view.action_picture(by)
            return
        if not self.shown.experiment.settings:
            return
        row = self.shown.row
        value = self.shown.settings[row.name]
        after = stepped(row, value, by)
        if after == value:
            self.refused(f"{row.name} has no value further that way: Enter types another.")
            return
        self._set(after)

    def action_usual(self) -> None:
        if self.shown.experiment.settings:
            self._set(self.shown.row.default)

    def _set(self, value: Value) -> None:
        try:
            self.shown.set(self.shown.row, value)
        except UsageError as error:
            self.refused(str(error))
            return
        self.refusal = ""
        self.draw()

    def action_enter(self) -> None:
        """Types the value of a setting; in the list of experiments, goes to the settings."""
        if self.screen.focused is not self.body.form:
            self.body.focus_form()
            self.draw()
            return
        if not self.shown.experiment.settings:
            return
        row = self.shown.row
        value = self.shown.settings[row.name]
        self.body.start_typing(
            row.name.replace("_", " "), "" if value is None else row.written(value)
        )
        self._draw_left()

    async def action_open(self) -> None:
        picking = recording_picking(newest_first(lab_recordings()))
        await self.pick(picking, lambda picked: self.runs.open_recording(path_of(picking, picked)))

    @on(Input.Submitted, "#plan-field")
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        row = self.shown.row
        try:
            value = row.default if not text else row.read(text)
            self.shown.set(row, value)
        except UsageError as error:
            self.refused(str(error))
            return
        self.refusal = ""
        self.body.stop_typing()
        self.draw()

    def action_back(self) -> None:
        if self.body.typing:
            self.body.stop_typing()
        elif not self.refusal:
            self.screen.set_focus(self.body.list)
        self.refusal = ""
        self.draw()

    # Running

    def action_run(self) -> None:
        """Runs the experiment, or plays a recording again."""
        if self.runs.live is not None:
            self.refused(
                f"{self.runs.live.experiment.name} still runs, and one runs at a time: x stops it."
            )
            return
        self.refusal = ""
        if self.shown.missing_weights:
            self.refused(self.shown.missing_weights)
            return
        self.runs.start()
        self.draw()

    def action_go_on(self) -> None:
        run = self.shown.run
        if run is not None and self.runs.live is None:
            self.refusal = ""
            self.runs.go_on(run)
            self.draw()

    def action_pause(self) -> None:
        run = self.shown.run
        if run is not None and run.phase is LabPhase.PLAYING:
            run.paused = not run.paused
        else:
            self.runs.pause()
        self.draw()

    def action_stop(self) -> None:
        run = self.shown.run
        if run is not None and run.phase is LabPhase.PLAYING:
            run.play_on(to_end=True)
        elif self.runs.process.silence:
            self.runs.process.child.kill()
        else:
            self.runs.stop()
        self.draw()

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        run, live = self.shown.run, self.runs.live
        if action == "run":
            return live is None
        if action == "go_on":
            return live is None and run is not None and run.can_go_on
        plays = run is not None and run.phase is LabPhase.PLAYING
        if action == "pause":
            goes = live is not None and live.phase in (LabPhase.RUNNING, LabPhase.PAUSED)
            return plays or goes
        if action == "stop":
            return plays or (live is not None and live.phase is not LabPhase.STOPPING)
        focused = self.screen.focused
        if action in ("move", "turn", "usual", "enter") and focused is self.body.picture:
            return bool(self.view.check_action(action, parameters))
        if action in ("turn", "usual") or (action == "enter" and focused is not self.body.list):
            return focused is self.body.form and bool(self.shown.experiment.settings)
        if action in ("move", "open"):
            return not self.body.typing
        if action == "back":
            return focused is not self.body.list or bool(self.refusal)
        return super().offers(action, parameters)

    # Showing

    def show_phase(self) -> None:
        self.draw()

    @property
    def waits_for_engine(self) -> bool:
        return False

    def engine_lost(self, sentence: str) -> None:
        """Does nothing: this panel does not use the estimator."""

    def focus_view(self) -> None:
        self.screen.set_focus(self.body.picture)

    def draw(self) -> None:
        shown, body, run = self.shown, self.body, self.shown.run
        title = body.title_line
        question, note = shown.experiment.question, title_note(run, len(shown.kept))
        going = run is not None and not run.over
        room = title.content_size.width - (_PROGRESS if going else 0)
        fits = len(question) + len(note) + 3 < room or not title.is_mounted
        title.subject, title.note = question if fits else shown.experiment.name, note
        title.details = tuple(self._details(run))
        title.activity = run.phase.value if run is not None and going else ""
        title.fraction = run.share if run is not None and going else None
        title.silent = bool(self.runs.process.silence) and going
        body.picture.show(partial(self.view.draw, shown))
        self._draw_left()
        self.speak()
        self.refresh_bindings()

    def _details(self, run: LabRun | None) -> Iterable[str]:
        if run is None:
            return
        pictured = isinstance(self.view, PictureView)
        faint = self.shown.faint if pictured else None
        count = len(self.shown.pictures)
        if pictured and count > 1:
            yield f"picture {self.shown.picture % count + 1} of {count}"
        if faint is not None:
            yield f"dotted: run {faint.number} {faint.differing(run)}".rstrip()
        if changed := run.differing():
            yield changed

    def _draw_left(self) -> None:
        shown, body = self.shown, self.body
        body.make_room(len(EXPERIMENTS), max(len(each.settings) for each in EXPERIMENTS))
        on_form = self.screen.focused in (body.form, body.field)
        self._draw_list()
        body.form.show(form_fields(shown), shown.knob)
        body.help.show(partial(help_lines, shown, on_form))

    def _draw_list(self) -> None:
        listed = self.body.list
        focused = self.screen.focused is listed
        listed.show(partial(experiment_lines, self.shown, self.runs.live, focused))

    def meaning(self) -> str:
        silence = self.runs.process.silence
        return f"{silence} x ends it." if silence else sentence_of(self.shown)

    def other_subject(self) -> str:
        run = self.shown.run
        if run is None or run.model == self.shown.model:
            return ""
        what = "a recording" if run.recorded else "a run"
        return f"{what} on {printable(run.model)}"
