"""The Activations view: the input and output of a module, and the error of its output under the
schemes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import Input

from qtui.engine.answers.activations import Captured, Outputs, Ranges
from qtui.engine.client import EngineLost
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.panel.hooks import PaletteEntry
from qtui.screen.panel.keys import key_of
from qtui.screen.tensors.subject import INPUT, OUTPUT
from qtui.screen.widgets.field import TypingField
from qtui.screen.widgets.text_picture import (
    Canvas,
    TextLine,
    TextPicture,
    TonedLine,
    in_rows,
    paragraphs,
)
from qtui.tui.panels.quantize.activations.feed import ActivationsFeed, TextChoice
from qtui.tui.panels.quantize.activations.keys import ACTIVATIONS_KEYS, HELP
from qtui.tui.panels.quantize.activations.layout import all_lines, wrapped_lines
from qtui.tui.panels.quantize.activations.states import CaptureState, state_sentence, state_words
from qtui.tui.panels.quantize.tensor_reader import Activity, Look
from qtui.tui.panels.quantize.view import TensorView
from qtui_core.codec import printed
from qtui_core.errors import QtuiError, UsageError
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

#: If a capture took longer than this, the model runs again only when the user asks for it, and not
#: for each tensor that the cursor passes.
UNASKED_SECONDS = 5.0
#: Characters of a prompt that fit in a request to the engine even if JSON takes 12 bytes for each.
LONGEST_PROMPT = 80_000
BUILT_IN = TextChoice()
#: What the view shows once a text was read: the SQNR of each way to scale.


class ActivationsView(TensorView):
    """The activations of the chosen weight's module while the model reads a text: the SQNR of
    dynamic and static scales, the largest channels, and the error of the layer's output."""

    TITLE = "Activations"
    NUMBERS = False
    HELP = HELP
    KEYS: ClassVar[tuple[Binding, ...]] = ACTIVATIONS_KEYS

    DEFAULT_CSS = """
    ActivationsView {
        layout: vertical;
        #activations-text { display: none; }
        &.-typing #activations-text { display: block; }
        TextPicture { height: 1fr; padding: 0 1; }
    }
    """

    def __init__(self, panel: QuantizePanel) -> None:
        super().__init__(panel)
        drawing = self.drawing
        self.lines = TextPicture(drawing, self._picture)
        self.field = TypingField(self, id="activations-text")
        self.state = CaptureState.NOTHING
        self.trouble = ""
        self.text: TextChoice | None = None
        """The text that the model reads; None until the user has chosen one."""
        self.found: Captured | None = None
        self.ranges: Ranges | None = None
        self.outputs: Outputs | None = None
        self._message = ""
        self._kind = "prompt"
        self._model = self._tensor = ""
        self._asked = ""
        self._seconds = 0.0
        self._feed: ActivationsFeed | None = None

    def compose(self) -> ComposeResult:
        yield self.field
        yield self.lines

    # Called by the panel

    @property
    def held(self) -> frozenset[str]:
        """The weights whose modules are captured in the engine."""
        return frozenset() if self._feed is None else self._feed.held

    async def look(self, look: Look, activity: Activity) -> None:
        if self._feed is None:
            self._feed = ActivationsFeed(self.panel.feed)
        self._meet(look.model)
        tensor = self._tensor = look.subject.tensor
        if self.found is not None and self.found.tensor != tensor:
            self._forget()
        if self.text is None or (
            self._seconds > UNASKED_SECONDS and tensor not in self.held and tensor != self._asked
        ):
            if self.state is not CaptureState.FAILED:
                self._be(CaptureState.NOTHING)
            return
        self._message = ""
        try:
            found = await self._capture(self._feed, self.text, look, activity)
        except EngineLost:
            raise
        except QtuiError as error:
            self.text = None  # it would fail again for every tensor
            self._be(CaptureState.FAILED, str(error))
            return
        try:
            await self._measure(self._feed, found, look, activity)
        except EngineLost:
            raise
        except QtuiError as error:
            self._be(CaptureState.FAILED, str(error))

    def _meet(self, model: str) -> None:
        """Forgets the chosen text if the model is another one."""
        if model != self._model:
            self._model, self.text, self._seconds = model, None, 0.0

    async def _capture(
        self, feed: ActivationsFeed, text: TextChoice, look: Look, activity: Activity
    ) -> Captured:
        if self.found is None:
            self._be(CaptureState.CAPTURING)

        def heard(stage: str, fraction: float) -> None:
            activity(stage, fraction)
            if self.found is None:
                self._be(CaptureState.CAPTURING, f"{stage.capitalize()}, {fraction:.0%}")

        found = await feed.capture(look.model, look.subject.tensor, text, heard)
        if self.found is None or self.found.number != found.number:
            self.ranges = self.outputs = None
            self._seconds = found.seconds
        self.found, self._asked = found, ""
        self._be(CaptureState.READY)
        return found

    async def _measure(
        self, feed: ActivationsFeed, found: Captured, look: Look, activity: Activity
    ) -> None:
        side = OUTPUT if look.subject.source == OUTPUT else INPUT
        scheme = look.schemes[look.active]
        self.ranges = await feed.ranges(look.model, found, side, scheme, activity)
        self._be(CaptureState.READY)
        try:
            self.outputs = await feed.outputs(
                look.model, found, look.schemes, look.active, activity
            )
        except UsageError as error:  # the layer is too large for it; the ranges are still correct
            self.outputs = None
            self._be(CaptureState.READY, str(error))
        else:
            self._be(CaptureState.READY)

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        phase = self.panel.phase if self.is_mounted else AskingPhase.OPENING
        if phase is AskingPhase.LOST:
            self._feed = None  # the captures were in the engine's process
            self._forget()
        if keep or phase in (AskingPhase.WORKING, AskingPhase.READY):
            message = ""  # the view has its own text for this
        elif phase is AskingPhase.OPENING:
            self.state, self._tensor = CaptureState.NOTHING, ""
            self._forget()
        if phase is AskingPhase.STOPPED and self.state is CaptureState.CAPTURING:
            self.state = CaptureState.STOPPED
            self._speak()
        self._message = "" if self.state is CaptureState.STOPPED else message
        self._refresh()

    @property
    def typing(self) -> bool:
        return self.field.takes_keys

    def leave(self) -> None:
        self.field.close()
        self.panel.activate()

    def focus_start(self) -> bool:
        self.screen.set_focus(self.lines)
        return True

    def palette(self) -> Iterable[PaletteEntry]:
        yield PaletteEntry(
            "activations: Capture", "Let the model read the built-in text.", self.action_capture
        )

    def maximise_target(self) -> Widget | None:
        return self.lines

    def command_line(self) -> str:
        return "No command captures the inputs and outputs of a module."

    def copy_text(self) -> str | None:
        if self.state is not CaptureState.READY or self.found is None:
            return None
        lines = all_lines(100, 40, self.drawing.glyphs, self.found, self.ranges, self.outputs)
        plain = ["".join(text for text, _ in line).rstrip() for line in lines]
        return "\n".join([self._subject_name(), *plain, "", self.sentence])

    def export_data(self) -> dict[str, Any] | None:
        if self.state is not CaptureState.READY or self.found is None:
            return None
        parts = {"capture": self.found, "ranges": self.ranges, "outputs": self.outputs}
        return {name: printed(part) for name, part in parts.items()}

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.panel.body.typing if action in ("capture", "type_text") else True

    def action_capture(self) -> None:
        """Lets the model read the last text again, or the built-in one."""
        self._read(self.text or BUILT_IN if self.state is not CaptureState.READY else BUILT_IN)

    def action_type_text(self, kind: str) -> None:
        self._kind = kind
        self.field.placeholder = {
            "prompt": "text for the model to read, as long as you like",
            "file": "path of a text file",
        }[kind]
        chosen = None if self.text is None else getattr(self.text, kind)
        self.field.open(chosen or "")

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        value = event.value
        if self._kind == "prompt" and len(value) > LONGEST_PROMPT:
            self.panel.refused(
                f"A prompt of {len(value):,} characters is too long (at most {LONGEST_PROMPT:,}): "
                f"put it into a file, and let the model read that (i)."
            )
            return
        self.field.close()
        self.panel.activate()
        prompt = self._kind == "prompt"
        self._read(TextChoice(prompt=value) if prompt else TextChoice(file=value.strip()))

    @on(Input.Blurred)
    def _left(self, event: Input.Blurred) -> None:
        event.stop()
        self.field.close()

    def _read(self, text: TextChoice) -> None:
        # If several keys arrive together, `look` may not have been called for this model yet.
        self._meet(self.panel.shown.model)
        self.text, self.trouble = text, ""
        self.state = CaptureState.NOTHING
        entry = self.panel.shown.entry
        self._asked = "" if entry is None else entry.name
        self._forget()
        self.panel.look_again()

    # Showing

    def _forget(self) -> None:
        self.found = self.ranges = self.outputs = None
        self._speak()

    def _be(self, state: CaptureState, words: str = "") -> None:
        self.state, self.trouble = state, words
        self._speak()
        self._refresh()

    def _speak(self) -> None:
        if self.state is CaptureState.READY:
            parts = (self.ranges, self.outputs)
            said = [part.sentence for part in parts if part is not None]
            self.sentence = " ".join([*said, *([self.trouble] if self.trouble else [])])
        else:
            self.sentence = state_sentence(self.state, self.trouble, printable(self._tensor))

    def _refresh(self) -> None:
        self.lines.update()

    def _subject_name(self) -> str:
        assert self.found is not None
        side = "input" if self.ranges is None else self.ranges.side
        return f"{side} of {printable(self.found.module)}"

    def _picture(self, canvas: Canvas) -> Sequence[TextLine]:
        if self._message or self.state is not CaptureState.NOTHING:
            return in_rows(self._lay_out)(canvas)
        ids = ("quantize.capture", "quantize.prompt", "quantize.text_file")
        capture, prompt, file = (key_of(self.panel, each) for each in ids)
        words = state_words(self.state, self.trouble, (capture, prompt, file))
        return paragraphs([text for each in words for text in (each, "")][:-1], canvas.width)

    def _lay_out(self, width: int, height: int) -> Sequence[TonedLine]:
        glyphs = self.drawing.glyphs
        if self._message:
            return wrapped_lines(width, self._message.splitlines())
        if self.state is CaptureState.READY and self.found is not None:
            return all_lines(width, height, glyphs, self.found, self.ranges, self.outputs)
        return wrapped_lines(width, state_words(self.state, self.trouble))
