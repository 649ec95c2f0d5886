"""The Model view: how far the model is from the original under each scheme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import Input

from qtui.engine.answers.tensors import ModelIndex
from qtui.engine.client import EngineLost
from qtui.report.evaluation.document import evaluation_document, frontier_picture
from qtui.report.faces.plain import to_plain
from qtui.report.pictures.svg import picture_svg, standalone
from qtui.screen.command_line import Command
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.widgets.field import TypingField
from qtui.screen.widgets.task_title import TaskTitle
from qtui.screen.widgets.text_picture import Canvas, TextLine, TextPicture, centred
from qtui.tui.panels.quantize.model.export import (
    command_of,
    command_words,
    details_of,
    evaluation_table,
)
from qtui.tui.panels.quantize.model.keys import HELP, KEYS
from qtui.tui.panels.quantize.model.layout import model_lines
from qtui.tui.panels.quantize.model.run import MOST_WINDOWS, EvaluationState, ModelRun
from qtui.tui.panels.quantize.model.sentences import model_sentence
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui.tui.panels.quantize.view import TensorView
from qtui_core.codec import printed
from qtui_core.errors import QtuiError, UsageError
from qtui_core.evaluation.results import Evaluation
from qtui_core.evaluation.settings import ORIGINAL
from qtui_core.models.quoting import printable
from qtui_core.schemes.scheme import Scheme

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

EVALUATION = "evaluation"


class ModelView(TensorView):
    """The schemes as rows, with their bits and their divergence from the original, and a picture of
    both with the frontier. The engine evaluates when the user asks for it; other views may be
    looked at meanwhile."""

    TITLE = "Model"
    HELP = HELP
    KEYS: ClassVar[tuple[Binding, ...]] = KEYS
    NUMBERS = False
    OF_TENSOR = False
    EXPORTED = "evaluation"

    DEFAULT_CSS = """
    ModelView {
        layout: vertical;
        #model-text { display: none; }
        &.-typing #model-text { display: block; }
        TextPicture { height: 1fr; }
    }
    """

    def __init__(self, panel: QuantizePanel) -> None:
        super().__init__(panel)
        self.run = ModelRun()
        self.title_line = TaskTitle(self.drawing)
        self.field = TypingField(self, id="model-text")
        self.lines = TextPicture(self.drawing, self._lay_out)
        self._kind = "schemes"
        self._message = ""
        self._index: ModelIndex | None = None
        """Of the model of the figures: another one each time that a model is opened."""

    def compose(self) -> ComposeResult:
        yield self.field
        yield self.title_line
        yield self.lines

    # Called by the panel

    def opened(self) -> None:
        super().opened()
        self._draw()

    def show(self, shown: QuantizeShown) -> None:
        self._draw()

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        self._message = message
        if self.working and self.panel.phase is AskingPhase.LOST:
            self.run.end(EvaluationState.LOST)
        self._draw()
        self.post_message(self.Spoke())  # trouble that is over is no longer the sentence

    @property
    def working(self) -> bool:
        return self.run.state is EvaluationState.RUNNING

    def stop(self) -> None:
        self.panel.give_up(EVALUATION)
        self.run.end(EvaluationState.STOPPED)
        self._draw()

    def unfinished(self) -> str:
        model = printable(self.run.model)
        return f"The evaluation of {model} still runs." if self.working else ""

    @property
    def typing(self) -> bool:
        return self.field.takes_keys

    def leave(self) -> None:
        self.field.close()
        self.panel.activate()

    def focus_start(self) -> bool:
        self.screen.set_focus(self.lines)
        return True

    # Evaluating

    def action_evaluate(self) -> None:
        """Lets the original and the schemes read the text, or goes on."""
        self._meet()
        self.panel.forget_refusal()
        self.run.begin()
        self._draw()
        self.panel.ask(self._evaluate, EVALUATION)

    async def _evaluate(self) -> None:
        run = self.run

        def heard(fraction: float, found: Evaluation | None) -> None:
            run.hear(fraction, found)
            self._draw()

        try:
            found = await self.panel.feed.evaluation(run.model, run.settings, heard)
        except EngineLost:
            run.end(EvaluationState.LOST)
            self._draw()
            raise
        except QtuiError as error:
            run.end(EvaluationState.FAILED)
            run.trouble = str(error)
        else:
            run.state, run.found = EvaluationState.DONE, found
        self._draw()

    def _meet(self) -> None:
        """Forgets the figures of a model that was opened before, and lists the schemes of the
        panel."""
        shown, run = self.panel.shown, self.run
        if shown.index is not self._index:
            self.panel.give_up(EVALUATION)
            self._index = shown.index
            self.run = ModelRun(shown.model, others=run.others, text=run.text, gpu=run.gpu)
        self.run.list_schemes(shown.schemes)

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self.panel.body.typing or self._parameters is None:
            return False
        if action == "picture":
            return frontier_picture(self.run.rows) is not None
        return action == "move" or not self.working

    def action_picture(self) -> None:
        self.run.picture_alone = not self.run.picture_alone
        self._draw()

    def action_move(self, by: int) -> None:
        self.panel.forget_refusal()
        self.run.cursor = max(0, min(len(self._names) - 1, self.run.cursor + by))
        self._draw()

    @on(TextPicture.Picked)
    def _picked(self, message: TextPicture.Picked) -> None:
        message.stop()
        if isinstance(message.pick, int):
            self.run.cursor = min(message.pick, len(self._names) - 1)
            self._draw()

    def action_remove(self) -> None:
        name = self._names[self.run.cursor]
        if name in map(str, self.panel.shown.schemes):
            self.panel.refused(f"{name} is A or B of the panel: turn its knobs, or type another.")
        elif self.run.cursor:
            others = tuple(each for each in self.run.others if str(each) != name)
            self._change(others=others)

    def action_windows(self, factor: float) -> None:
        count = self.run.window_count(self._parameters or 0)
        self._change(windows=max(1, min(MOST_WINDOWS, int(count * factor))))

    def action_device(self) -> None:
        self._change(gpu=not self.run.gpu)

    def action_type_text(self, kind: str) -> None:
        self._kind = kind
        self.field.placeholder = {
            "schemes": "schemes to add, for example: int4:group32 fp4",
            "text": "path of a text file; empty for the text inside",
        }[kind]
        self.field.open(self.run.text or "" if kind == "text" else "")

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if self._kind == "text":
            self.leave()
            self._change(text=text or None)
            return
        try:
            added = tuple(map(Scheme.parse, text.replace(",", " ").split()))
        except UsageError as error:
            self.panel.refused(str(error))
            return
        self.leave()
        self._change(others=tuple(dict.fromkeys((*self.run.others, *added))))

    @on(Input.Blurred)
    def _left(self, event: Input.Blurred) -> None:
        event.stop()
        self.field.close()

    def _change(self, **changes: Any) -> None:
        """Changes what the next evaluation is asked for. Figures on other windows are forgotten."""
        self.panel.forget_refusal()
        for name, value in changes.items():
            setattr(self.run, name, value)
        if "others" not in changes:
            self.run.found = None
        if self.run.found is None:
            self.run.state = EvaluationState.NOTHING
        self._draw()

    # Showing

    @property
    def _parameters(self) -> int | None:
        """The parameters of the model; None before a model that can be evaluated is open."""
        index = self.panel.shown.index
        return None if index is None or not index.tensors or self._obstacle else index.parameters

    @property
    def _obstacle(self) -> str:
        """Why the open model cannot be evaluated, as far as its headers tell."""
        index = self.panel.shown.index
        if index is None or not index.tensors or any(each.quantizable for each in index.tensors):
            return ""
        return (
            f"No matrix of {printable(index.id)} is stored as plain numbers, so there is no "
            f"original to compare with: open the model that it was made from."
        )

    @property
    def _names(self) -> list[str]:
        """The names of the lines."""
        known = [row.name for row in self.run.rows] or [ORIGINAL]
        return [*known, *self.run.missing]

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        self._meet()
        run, title, found = self.run, self.title_line, self.run.found
        title.subject = printable(self.panel.shown.model)
        title.note = "partial" if found is not None and found.ended == "stopped" else ""
        title.details = () if found is None else tuple(details_of(found))
        reading = run.reading
        title.activity, title.fraction = "", None
        if self.working:
            title.activity, title.fraction = "starting", run.fraction
        if reading is not None and found is not None:
            windows = found.begun.text.windows
            title.activity = f"{reading.name}, windows {reading.first}-{reading.last} of {windows}"
        self.sentence = self._obstacle or model_sentence(run, self._parameters)
        self.lines.update()
        self.panel.refresh_bindings()

    def _lay_out(self, canvas: Canvas) -> Sequence[TextLine]:
        parameters = self._parameters
        if parameters is None:
            said = self._obstacle or self._message
            if self.panel.trouble:
                return centred(self.panel.way_out)(canvas)
            return centred(said)(canvas)
        return model_lines(self.run, parameters, canvas, self.drawing.brush)

    # Hooks of the shell

    def palette(self) -> Iterable[PaletteEntry]:
        if not self.working and self._parameters is not None:
            words = "Let the original and the schemes read the text."
            yield PaletteEntry("model: Evaluate", words, self.action_evaluate)

    def maximise_target(self) -> Widget | None:
        return self.lines

    def copy_text(self) -> str | None:
        found = self.run.found
        if found is None or not found.rows:
            return None
        return to_plain(evaluation_document(found, command_of(found)))

    def command_line(self) -> Command:
        self._meet()
        found = self.run.found
        if found is None or not found.rows:
            return command_words(self.run.model, self.run.settings)
        return command_words(found.begun.model, found.begun.settings)

    def export_data(self) -> dict[str, Any] | None:
        found = self.run.found
        return None if found is None or not found.rows else printed(found)

    def export_table(self) -> Iterable[Sequence[object]] | None:
        found = self.run.found
        return evaluation_table(found) if found is not None and found.rows else None

    def export_picture(self) -> str | None:
        picture = frontier_picture(self.run.rows)
        return None if picture is None else standalone(picture_svg(picture))
