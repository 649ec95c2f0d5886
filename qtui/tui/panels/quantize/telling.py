"""What the Quantize panel says, and which of its keys can do something now."""

from __future__ import annotations

from textual.actions import parse
from textual.app import ComposeResult
from textual.reactive import reactive

from qtui.screen.panel.asking import EnginePanel, Phase
from qtui.tui.panels.quantize.body import QuantizeBody
from qtui.tui.panels.quantize.numbers import all_rows
from qtui.tui.panels.quantize.shown import Shown


class TellingPanel(EnginePanel):
    """What is shown, the phase that looking at it is in, and the sentence about it."""

    phase: reactive[Phase] = reactive(Phase.OPENING, init=False)

    ranking: reactive[bool] = reactive(False, init=False)
    """Whether all tensors are being measured, which goes on beside looking at one."""

    def compose_body(self) -> ComposeResult:
        self.body = QuantizeBody(self.drawing)
        yield self.body

    def on_mount(self) -> None:
        self.shown = Shown(self.qtui.model)

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        if not self.is_mounted:
            return True
        if action == "in_view":
            view_id, own = str(parameters[0]), str(parameters[1])
            return view_id == self.body.view.VIEW_ID and self._view_offers(own)
        if action == "source":
            entry = self.shown.entry
            return entry is not None and entry.name in self.body.activations.held
        if action == "clear_injection":
            return self.shown.inject is not None
        if action in ("filter", "type_scheme"):
            return not self.body.typing
        if action == "restart":
            idle = self.phase in (Phase.LOST, Phase.STOPPED, Phase.FAILED)
            return idle or bool(self.silence)
        if action == "back":
            return self.body.can_leave
        if action == "stop":
            busy = self.ranking or self.phase in (Phase.OPENING, Phase.WORKING)
            return (busy or bool(self.silence)) and not self.body.can_leave
        return True

    def _view_offers(self, action: str) -> bool | None:
        _, name, parameters = parse(action)
        return self.body.view.check_action(name, parameters)

    # Saying

    def watch_phase(self) -> None:
        self.refresh_bindings()

    def watch_ranking(self) -> None:
        self.refresh_bindings()

    def _say(self, phase: Phase, text: str, *, keep_picture: bool = False) -> None:
        """Go to another phase; `text` stands where the picture is, or in the title."""
        self.phase = phase
        self.body.title_line.activity = text if keep_picture else ""
        self.body.title_line.fraction = None
        trouble = phase in (Phase.FAILED, Phase.LOST)
        self.body.say(text, keep=keep_picture, trouble=trouble)
        if trouble:
            self.shown.refusal = ""
            self._speak(text)

    def _speak(self, sentence: str) -> None:
        """The sentence, unless the one that stands there says why something is impossible."""
        self.shown.explanation = sentence
        self._show_sentence()

    def _show_sentence(self) -> None:
        said = self.body.view.sentence
        if self.phase in (Phase.FAILED, Phase.LOST):
            said = ""  # why there is nothing matters more than what it would mean
        self.sentence = self.shown.refusal or said or self.shown.explanation

    def refused(self, sentence: str) -> None:
        self.shown.refusal = sentence
        super().refused(sentence)

    def _forget_refusal(self) -> None:
        """Something else is done now: the sentence is about the picture again."""
        if self.shown.refusal:
            self.shown.refusal = ""
            self._show_sentence()

    def _show_numbers(self) -> None:
        if self.shown.schemes:
            self.body.table.rows = all_rows(self.shown, brief=self.body.brief)
            self.body.view.show(self.shown)

    # Stopping, failing

    def stop_ranking(self) -> None:
        """Measure no more tensors; where that would have led, nobody wants to go now."""
        if self.ranking:
            self.ranking = False
            self.workers.cancel_group(self, "rank")
            self.body.side.ranks_stopped()

    def failed(self, sentence: str) -> None:
        self._say(Phase.FAILED, sentence)

    def engine_lost(self, sentence: str) -> None:
        self.stop_ranking()
        self._say(Phase.LOST, f"{sentence}\nr starts it again.")
