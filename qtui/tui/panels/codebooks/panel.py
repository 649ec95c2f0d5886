"""Panel 3: NF4, INT4, FP4, E2M1 and others side by side, code by code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from qtui.engine.answers.tensors import TensorEntry
from qtui.engine.client import EngineState
from qtui.screen.command_line import Command, inspect_command
from qtui.screen.messages import ModelOpened
from qtui.screen.panel.asking import OPENING, PAUSE_SECONDS, AskingPhase
from qtui.screen.panel.keys import MANY
from qtui.screen.panel.view import view_keys, views_help
from qtui.screen.picker.picking import text_of
from qtui.screen.tensors.list import TensorList
from qtui.screen.tensors.panel import TensorPanel
from qtui.screen.tensors.subject import Subject
from qtui.screen.widgets.text_picture import TextPicture, centred
from qtui.tui.panels.codebooks import schemes
from qtui.tui.panels.codebooks.body import CodebooksBody
from qtui.tui.panels.codebooks.budget_view import BudgetView
from qtui.tui.panels.codebooks.codes_view import CodesView
from qtui.tui.panels.codebooks.construction_view import ConstructionView
from qtui.tui.panels.codebooks.export import panel_data
from qtui.tui.panels.codebooks.feed import CodebooksFeed
from qtui.tui.panels.codebooks.keys import CODEBOOKS_BINDINGS, HELP, URGENT_BINDINGS
from qtui.tui.panels.codebooks.levels_view import LevelsView
from qtui.tui.panels.codebooks.shown import CodebooksShown
from qtui.tui.panels.codebooks.view import CodebooksView
from qtui_core.errors import UsageError
from qtui_core.models.quoting import printable
from qtui_core.schemes.scheme import Scheme

TENSOR = "tensor"
#: What does nothing to the construction of NF4.
OF_SCHEMES = ("equal_bits", "schemes", "remove", "block", "nested_block", "double_quantization",
              "undo", "redo", "pick", "edge", "tensors", "filter")  # fmt: skip


class CodebooksPanel(TensorPanel):
    """Shows several schemes on one tensor of a model."""

    PANEL_ID = "codebooks"
    TITLE = "Codebooks"
    NUMBER = 3
    VIEWS = (CodesView, LevelsView, BudgetView, ConstructionView)
    HELP = HELP.format(views=views_help(VIEWS))
    KEYED_WIDGETS: ClassVar[tuple[type[Widget], ...]] = (TensorList,)
    BINDINGS: ClassVar[list[BindingType]] = [
        *URGENT_BINDINGS,
        *view_keys(PANEL_ID, VIEWS),
        *CODEBOOKS_BINDINGS,
    ]

    body: CodebooksBody
    view: CodebooksView

    def compose_body(self) -> ComposeResult:
        self.feed = CodebooksFeed(self.engine)
        self.shown = CodebooksShown(self.qtui.model)
        self._followed: Subject | None = None
        self.body = CodebooksBody(self.drawing, self.tabs)
        yield self.body

    # Hooks of the shell

    def activate(self) -> None:
        self.body.show_picture()
        self._follow()

    def maximise_target(self) -> Widget | None:
        return self.body.picture

    def copy_text(self) -> str | None:
        if self.shown.entry is None or not self.shown.current:
            return None
        return f"{self.shown.entry.name}\n\n{self.body.picture.text}\n\n{self.sentence}"

    def command_line(self) -> Command:
        shown = self.shown
        entry, subject = shown.entry, shown.subject
        if isinstance(self.view, ConstructionView) or not (entry and subject and shown.current):
            return "No command gives what is shown here."
        schemes = (each.scheme for each in shown.columns)
        return inspect_command(shown.model, entry, subject, schemes)

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown, self.view.TITLE, self.sentence)

    # Opening a model

    def open_model(self, model: str) -> None:
        self.give_up(TENSOR)
        self.refusal = ""
        self.say(AskingPhase.OPENING, f"Opening {printable(model)}")
        self.ask(partial(self._open, model), OPENING)

    async def _open(self, model: str) -> None:
        index = await self.feed.index(model)
        before = self.shown
        self.shown = CodebooksShown(
            model,
            index,
            asked=before.asked,
            at_equal_bits=before.at_equal_bits,
            nested_block=before.nested_block,
            construction=await self.feed.construction(),
        )
        self._followed = self._subject_of_quantize()
        self.body.side.load(index.tensors)
        self.post_message(ModelOpened(model, index.headline))
        if not index.tensors:
            self.failed(index.note or f"{printable(model)} has no tensors.")
            return
        followed = self._followed
        self.body.side.list.select(followed.tensor if followed else index.first_choice.name)

    def _subject_of_quantize(self) -> Subject | None:
        """The subject of the Quantize panel, if it is a tensor of this model."""
        model, subject = self.qtui.looked_at or ("", None)
        return subject if model == self.shown.model else None

    def _follow(self) -> None:
        """Shows the tensor that was chosen in the Quantize panel since this panel was left."""
        subject = self._subject_of_quantize()
        if subject is None or subject == self._followed or self.shown.index is None:
            return
        self._followed = subject
        if self.shown.entry is not None and self.shown.entry.name == subject.tensor:
            self.look()
        else:
            self.body.side.list.select(subject.tensor)

    def _words(self, entry: TensorEntry) -> tuple[str, ...]:
        """A note that the outlier injected in the Quantize panel is not in the tensor here: this
        panel's advice is for the model's own values."""
        followed = self._followed
        if followed is None or followed.tensor != entry.name or followed.inject is None:
            return ()
        return ("without the injected outlier",)

    # Looking at a tensor

    def look(self, *, pause: bool = False) -> None:
        """Reads the chosen tensor under the schemes; cancels the previous reading."""
        entry = self.shown.entry
        if entry is None:
            return
        self.body.show_title(entry, self._words(entry))
        if self.engine.state is EngineState.LOST:
            self.engine_lost(self.engine.detail)
        elif not entry.readable:
            self.failed(f"qtui cannot read the dtype {printable(entry.dtype)} yet.")
        elif not entry.elements:
            self.failed("This tensor is empty: there are no codes to count.")
        else:
            self.say(AskingPhase.WORKING, f"Counting the codes of all {entry.elements:,} elements")
            self.if_late(self._clear_stale)
            self.do(partial(self._read, entry, pause), TENSOR)

    def _clear_stale(self) -> None:
        if not self.shown.current:
            self.shown.forget()
            self.draw()

    async def _read(self, entry: TensorEntry, pause: bool) -> None:
        if pause:
            await asyncio.sleep(PAUSE_SECONDS)
        # All answers at once: what is shown, copied and exported is then of one tensor.
        self.shown.take(await self.feed.read(self.shown, entry, self._show_fraction))
        self.phase = AskingPhase.READY
        self.body.title_line.activity = ""
        self.body.title_line.fraction = None
        self.draw()

    def _show_fraction(self, fraction: float, _: object) -> None:
        self.body.title_line.activity = "counting codes"
        self.body.title_line.fraction = fraction

    def action_stop(self) -> None:
        if self.end_silent():
            return
        self.give_up(OPENING, TENSOR)
        if not self.shown.current:
            self.shown.forget()
        self.say(AskingPhase.STOPPED, "Stopped; r continues")

    def begin_again(self) -> None:
        if self.shown.entry is None:
            self.open_model(self.qtui.model)
        else:
            self.look()

    # Showing

    def show_phase(self) -> None:
        """Shows the phase. Known answers stay on the screen while new ones are awaited."""
        title = self.body.title_line
        title.fraction = None
        if not self.trouble and self.shown.columns:
            title.activity = "" if self.phase is AskingPhase.WORKING else self.status
            return
        title.activity = ""
        if self.trouble:
            self.shown.forget()
        self.draw()

    def draw(self) -> None:
        shown, view = self.shown, self.view
        self.body.settings.update(self._settings())
        ready = view.ready(shown)
        nothing = centred(self.way_out if self.trouble else self.status)
        draw = partial(view.draw, shown) if ready else nothing
        self.body.show(draw, titled=view.TITLED or not ready)
        self.speak()

    def meaning(self) -> str:
        ready = self.view.ready(self.shown)
        return self.view.meaning(self.shown) if ready else self.status.split("\n")[0]

    def _settings(self) -> str:
        shown = self.shown
        if shown.equal:
            return f"equal bits {float(shown.equal[0].bits):.4f}"
        dq = f"dq{shown.nested_block}" if shown.double_quantization else "no dq"
        if not shown.has_blocks:
            return f"no blocks, {dq}"
        return f"block {shown.block}, {dq}"

    def refused(self, sentence: str) -> None:
        self.body.title_line.activity = ""
        if self.phase is AskingPhase.WORKING and self.shown.columns:
            self.phase = AskingPhase.READY  # the content is still correct
        super().refused(sentence)

    # The cursor

    def action_move(self, by: int) -> None:
        self.refusal = ""
        self.view.move(self.shown, by)
        self.draw()

    def action_line_end(self, side: int) -> None:
        self.action_move(side * MANY)

    def action_edge(self, side: int) -> None:
        self.action_pick(side * MANY)

    def action_pick(self, by: int) -> None:
        self.refusal = ""
        count = max(len(self.shown.columns), 1)
        self.shown.chosen = max(0, min(count - 1, self.shown.chosen + by))
        self.draw()

    @on(TextPicture.Picked)
    def _picked(self, message: TextPicture.Picked) -> None:
        """Moves the cursor to the code that was clicked."""
        message.stop()
        if isinstance(message.pick, tuple):
            self.refusal = ""
            self.shown.chosen, self.shown.code = message.pick
            self.draw()

    # Tensors

    # Schemes

    def _change(self, change: Callable[[CodebooksShown], None]) -> bool:
        """Changes the schemes, or shows why that is impossible. Returns whether it was possible."""
        before = self.choice
        try:
            change(self.shown)
        except UsageError as error:
            self.refused(str(error))
            return False
        self.history.record(before)
        self.forget_refusal()
        self.look(pause=True)
        return True

    @property
    def choice(self) -> tuple[tuple[Scheme, ...], bool, int]:
        """The schemes, whether they have equal bits, and how many scales share a constant."""
        return self.shown.asked, self.shown.at_equal_bits, self.shown.nested_block

    def take_choice(self, choice: tuple[tuple[Scheme, ...], bool, int]) -> None:
        shown = self.shown
        shown.asked, shown.at_equal_bits, shown.nested_block = choice
        shown.chosen = min(shown.chosen, len(shown.asked) - 1)
        self.forget_refusal()
        self.look(pause=True)

    def action_equal_bits(self) -> None:
        self._change(schemes.turn_equal_bits)

    async def action_schemes(self) -> None:
        picking = schemes.schemes_picking(self.shown)

        def taken(picked: int | str) -> None:
            self._change(partial(schemes.take_schemes, text=text_of(picking, picked)))

        await self.pick(picking, taken)

    def action_remove(self) -> None:
        self._change(schemes.remove_chosen)

    def action_block(self, by: int) -> None:
        self._change(partial(schemes.step_block, by=by))

    def action_nested_block(self, by: int) -> None:
        budget = isinstance(self.view, BudgetView)
        self._change(partial(schemes.step_nested_block, by=by, budget=budget))

    def action_double_quantization(self) -> None:
        self._change(schemes.turn_double_quantization)

    def key_word(self, action: str) -> str:
        steps = action == "move(-1)" and isinstance(self.view, ConstructionView)
        return "Step" if steps else super().key_word(action)

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        if action in ("move", "line_end"):
            return isinstance(self.view, CodesView | ConstructionView)
        if action in OF_SCHEMES and isinstance(self.view, ConstructionView):
            return False
        if action == "stop":
            return (self.busy or bool(self.silence)) and not self.body.can_leave
        return super().offers(action, parameters)
