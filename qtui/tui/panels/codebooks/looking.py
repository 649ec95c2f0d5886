"""How the Codebooks panel reads a model and a tensor, and what it says in the meantime."""

from __future__ import annotations

import asyncio
from functools import partial

from textual.app import ComposeResult
from textual.reactive import reactive

from qtui.engine.client import EngineState
from qtui.screen.messages import ModelOpened
from qtui.screen.panel.asking import OPENING, EnginePanel, Phase
from qtui.screen.tensors.list import TensorEntry
from qtui.screen.tensors.subject import Subject
from qtui.screen.widgets.text_picture import Canvas, TextLine
from qtui.tui.panels.codebooks.body import CodebooksBody
from qtui.tui.panels.codebooks.budget_view import budget_sentence, draw_budget
from qtui.tui.panels.codebooks.codes_view import draw_codes
from qtui.tui.panels.codebooks.construction_view import draw_construction
from qtui.tui.panels.codebooks.data import EqualRow
from qtui.tui.panels.codebooks.feed import SWEEP, CodebooksFeed
from qtui.tui.panels.codebooks.levels_view import draw_levels
from qtui.tui.panels.codebooks.shown import (
    Shown,
    ViewName,
)
from qtui_core.models.quoting import printable
from qtui_core.schemes.scheme import MAX_DOUBLE_QUANTIZED_BLOCK, Family, Scheme
from qtui_core.schemes.stepping import resize_scheme

# Someone who holds a key down wants what they stop at.
PAUSE_SECONDS = 0.08
# What comes sooner replaces what was before it without a blank between them.
GRACE_SECONDS = 0.25
DRAWERS = {
    ViewName.CODES: draw_codes,
    ViewName.LEVELS: draw_levels,
    ViewName.BUDGET: draw_budget,
    ViewName.CONSTRUCTION: draw_construction,
}


class LookingPanel(EnginePanel):
    """One model, one tensor, some schemes, and the phase that looking at them is in."""

    phase: reactive[Phase] = reactive(Phase.OPENING, init=False)

    def compose_body(self) -> ComposeResult:
        self.body = CodebooksBody(self.drawing)
        yield self.body

    def on_mount(self) -> None:
        self.feed = CodebooksFeed(self.qtui.engine)
        self.shown = Shown(self.qtui.model)
        self.refusal = ""
        self._followed: Subject | None = None
        self._looks = 0

    # Opening a model

    def open_model(self, model: str) -> None:
        self.workers.cancel_group(self, "tensor")
        self.refusal = ""
        self._say(Phase.OPENING, f"Opening {printable(model)}")
        self.do(partial(self._open, model), OPENING)

    async def _open(self, model: str) -> None:
        if self.qtui.engine.state is EngineState.LOST:
            await self.qtui.engine.restart()
        index = await self.feed.index(model)
        before = self.shown
        self.shown = Shown(
            model,
            index,
            view=before.view,
            asked=before.asked,
            at_equal_bits=before.at_equal_bits,
            nested_block=before.nested_block,
            construction=await self.feed.construction(),
        )
        self._followed = self._subject_of_quantize()
        self.body.side.load(index.tensors)
        self.post_message(ModelOpened(model, index.headline))
        if not index.tensors:
            self._say(Phase.FAILED, index.note or f"{printable(model)} has no tensors.")
            return
        followed = self._followed
        self.body.side.list.select(followed.tensor if followed else index.first_choice.name)

    def _subject_of_quantize(self) -> Subject | None:
        """What the Quantize panel looks at, if that is a tensor of this model."""
        model, subject = self.qtui.looked_at or ("", None)
        return subject if model == self.shown.model else None

    def _follow(self) -> None:
        """Go to what was chosen in the Quantize panel since this one was shown."""
        subject = self._subject_of_quantize()
        if subject is None or subject == self._followed or self.shown.index is None:
            return
        self._followed = subject
        if self.shown.entry is not None and self.shown.entry.name == subject.tensor:
            self._look()
        else:
            self.body.side.list.select(subject.tensor)

    def _words(self, entry: TensorEntry) -> tuple[str, ...]:
        """That the outlier which the Quantize panel has put into this tensor is not in it here:
        what is advised is for the model's own values."""
        followed = self._followed
        if followed is None or followed.tensor != entry.name or followed.inject is None:
            return ()
        return ("without the injected outlier",)

    # Looking at a tensor

    def _schemes_changed(self) -> None:
        self._forget_refusal()
        self._look(pause=True)

    def _look(self, *, pause: bool = False) -> None:
        """Read the chosen tensor under the schemes; what was being read gives up."""
        entry = self.shown.entry
        if entry is None:
            return
        self.body.show_title(entry, self._words(entry))
        if self.qtui.engine.state is EngineState.LOST:
            self.engine_lost(self.qtui.engine.detail)
        elif not entry.readable:
            self._say(Phase.FAILED, f"{printable(entry.dtype)} is a dtype that is not read yet.")
        elif not entry.elements:
            self._say(Phase.FAILED, "This tensor is empty: there are no codes to count.")
        else:
            self._looks += 1
            self._say(Phase.WORKING, f"Counting the codes of all {entry.elements:,} elements")
            self.set_timer(GRACE_SECONDS, partial(self._clear_stale, self._looks))
            self.do(partial(self._read, entry, pause), "tensor")

    def _clear_stale(self, look: int) -> None:
        """Take away what is of another tensor, if its successor is long in coming."""
        if look == self._looks and self.phase is Phase.WORKING and not self.shown.current:
            self.shown.forget()
            self._draw()

    async def _read(self, entry: TensorEntry, pause: bool) -> None:
        if pause:
            await asyncio.sleep(PAUSE_SECONDS)
        shown = self.shown
        subject = Subject(entry.name)
        equal: tuple[EqualRow, ...] = ()
        if shown.at_equal_bits:
            equal = await self.feed.equal_bits(shown.asked, entry.matrix)
        schemes = tuple(dict.fromkeys(Scheme.parse(row.scheme) for row in equal)) or shown.asked
        columns, verdict = await self.feed.columns(
            shown.model, subject, schemes, shown.at_equal_bits, self._show_fraction
        )
        budgets = await self.feed.budgets(self._budgeted(schemes), entry.matrix)
        codebooks = (s.format for s in schemes if s.family is Family.CODEBOOK)
        name = next(codebooks, "nf4")
        sizes = sorted({*SWEEP, min(shown.block, MAX_DOUBLE_QUANTIZED_BLOCK)})
        sweep = await self.feed.sweep(name, shown.nested_block, sizes, entry.matrix)
        # All at once: what is shown, copied and exported belongs together.
        shown.equal, shown.columns, shown.verdict = equal, columns, verdict
        shown.budgets, shown.sweep, shown.read = budgets, sweep, subject
        self.phase = Phase.READY
        self.body.title_line.activity = ""
        self.body.title_line.fraction = None
        self._draw()

    def _budgeted(self, schemes: tuple[Scheme, ...]) -> list[Scheme]:
        """The schemes, codebooks with and without double quantization."""
        found = []
        for scheme in schemes:
            found.append(resize_scheme(scheme, double_quantization=False))
            nested = self.shown.nested_block
            found.append(resize_scheme(scheme, double_quantization=True, nested=nested))
        return list(dict.fromkeys(found))

    def _show_fraction(self, fraction: float, _: object) -> None:
        self.body.title_line.activity = "counting codes"
        self.body.title_line.fraction = fraction

    # Showing

    def _draw(self) -> None:
        """The view that is chosen, with what is known, and its sentence."""
        shown = self.shown
        self.body.tabs.active = list(ViewName).index(shown.view)
        self.body.settings.update(self._settings())
        own = shown.view is ViewName.CONSTRUCTION and shown.construction is not None
        if not own and not shown.columns:
            self.body.set_class(False, "-untitled")
            self.body.show_message(self._message)
            self.sentence = self.refusal or self._message.split("\n")[0]
            return

        def draw(canvas: Canvas) -> list[TextLine]:
            return DRAWERS[shown.view](shown, canvas)

        self.body.show(draw, titled=not own)
        self.sentence = self.refusal or self._sentence()

    def _sentence(self) -> str:
        shown = self.shown
        if shown.view is ViewName.CONSTRUCTION and shown.construction is not None:
            step = shown.construction.steps[shown.step]
            return f"{shown.step + 1}. {step.title}: {step.sentence}"
        if shown.view is ViewName.BUDGET:
            return budget_sentence(shown)
        return shown.verdict

    def _settings(self) -> str:
        shown = self.shown
        if shown.equal:
            return f"equal bits {shown.equal[0].bits:.4f}"
        dq = f"dq{shown.nested_block}" if shown.double_quantization else "no dq"
        if not shown.has_blocks:
            return f"no blocks, {dq}"
        return f"block {shown.block}, {dq}"

    _message = ""

    def _say(self, phase: Phase, text: str) -> None:
        """Go to another phase; what is known stays on the screen while new is on its way."""
        self.phase = phase
        self._message = text
        self.body.title_line.fraction = None
        if phase in (Phase.OPENING, Phase.WORKING, Phase.STOPPED) and self.shown.columns:
            self.body.title_line.activity = "" if phase is Phase.WORKING else text
            return
        self.body.title_line.activity = ""
        if phase in (Phase.FAILED, Phase.LOST):
            self.refusal = ""
            self.shown.forget()
        self._draw()

    # Stopping, failing, starting again

    def action_stop(self) -> None:
        if self.end_silent():
            return
        for group in (OPENING, "tensor"):
            self.workers.cancel_group(self, group)
        if not self.shown.current:
            self.shown.forget()
        self._say(Phase.STOPPED, "Stopped; r goes on")

    def action_restart(self) -> None:
        self.end_silent()
        self.do(self._restart, OPENING)

    async def _restart(self) -> None:
        if self.qtui.engine.state is EngineState.LOST:
            await self.qtui.engine.restart()
        if self.shown.entry is None:
            self.open_model(self.qtui.model)
        else:
            self._look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        if not self.is_mounted:
            return True
        if action in ("filter", "type_schemes"):
            return not self.body.typing
        if action == "restart":
            idle = self.phase in (Phase.LOST, Phase.STOPPED, Phase.FAILED)
            return idle or bool(self.silence)
        if action == "back":
            return self.body.can_leave
        if action == "stop":
            busy = self.phase in (Phase.OPENING, Phase.WORKING) or bool(self.silence)
            return busy and not self.body.can_leave
        return True

    def watch_phase(self) -> None:
        self.refresh_bindings()

    def refused(self, sentence: str) -> None:
        self.refusal = sentence
        self.body.title_line.activity = ""
        if self.phase is Phase.WORKING and self.shown.columns:
            self.phase = Phase.READY  # what is shown stays true
        self.sentence = sentence

    def _forget_refusal(self) -> None:
        """Something else is done now: the sentence is about the picture again."""
        if self.refusal:
            self.refusal = ""
            self._draw()

    def failed(self, sentence: str) -> None:
        self._say(Phase.FAILED, sentence)

    def engine_lost(self, sentence: str) -> None:
        self._say(Phase.LOST, f"{sentence}\nr starts it again.")
