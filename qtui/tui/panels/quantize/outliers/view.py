"""Which elements are outliers, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from qtui.report.numbers import format_value
from qtui.tui.panels.quantize.loading import Activity, Look
from qtui.tui.panels.quantize.outliers.data import (
    Attribution,
    Decomposition,
    Granularities,
    OutlierNumbers,
)
from qtui.tui.panels.quantize.outliers.export import outliers_data
from qtui.tui.panels.quantize.outliers.feed import (
    ask_attribution,
    ask_decomposition,
    ask_granularities,
    ask_outliers,
)
from qtui.tui.panels.quantize.outliers.granularity_bars import granularity_lines
from qtui.tui.panels.quantize.outliers.injecting import (
    EXAMPLES,
    injection_text,
    parse_injection,
    place_text,
    scaled,
    sigmas_text,
)
from qtui.tui.panels.quantize.outliers.keys import HELP, KEYS
from qtui.tui.panels.quantize.outliers.lines import TonedLines
from qtui.tui.panels.quantize.outliers.listing import listing_lines
from qtui.tui.panels.quantize.outliers.sentences import injection_sentence, outlier_sentence
from qtui.tui.panels.quantize.outliers.threshold_curve import first_choice, threshold_lines
from qtui.tui.panels.quantize.subject import Injection
from qtui.tui.panels.quantize.views import View
from qtui.tui.widgets.drawing import Drawing
from qtui.tui.widgets.field import Field
from qtui_core.errors import UsageError

FACTOR = 2.0


class GranularityBars(TonedLines, can_focus=True):
    """The error by granularity; up and down make the injected outlier larger and smaller."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("up,k", "resize(1)", "Larger outlier", show=False, id="outlier.larger",
                tooltip="Double the injected outlier"),
        Binding("down,j", "resize(-1)", "Smaller outlier", show=False, id="outlier.smaller",
                tooltip="Halve the injected outlier"),
    ]  # fmt: skip

    class Resized(Message):
        """The injected outlier is to be larger (1) or smaller (-1)."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    def action_resize(self, direction: int) -> None:
        self.post_message(self.Resized(direction))


class OutliersView(View):
    """The elements and columns at the left; what granularity and LLM.int8() do about them at
    the right, with or without an outlier put in."""

    VIEW_ID = "outliers"
    TITLE = "Outliers"
    HELP = HELP
    NUMBERS = False
    KEYS: ClassVar[tuple[Binding, ...]] = KEYS
    DEFAULT_CSS = """
    OutliersView {
        layout: vertical;
        #outlier-line { height: 1; }
        #outlier-words { height: 1; width: 1fr; color: $quiet; }
        #outlier-words.-injected { color: $warning; }
        #outlier-field { display: none; }
        &.-typing #outlier-words { display: none; }
        &.-typing #outlier-field { display: block; }
        #outlier-parts { height: 1fr; margin: 1 0 0 0; }
        #outlier-right { width: 1fr; }
        #outlier-list { width: 36; margin: 0 2 0 0; }
        #outlier-granularities { height: auto; }
        #outlier-thresholds { height: 1fr; margin: 1 0 0 0; }
        #outlier-message { display: none; color: $quiet; content-align: center middle; }
        &.-empty #outlier-message { display: block; }
        &.-empty #outlier-parts { display: none; }
        &.-trouble #outlier-message { color: $error; }
        &.-narrow #outlier-list { width: 35; margin: 0 1 0 0; }
        &.-tiny #outlier-list { display: none; }
        &.-wide #outlier-list { width: 56; margin: 0 4 0 0; }
        &.-short #outlier-parts { margin: 0; }
        &.-short #outlier-thresholds { margin: 0; }
    }
    """

    def __init__(self, drawing: Drawing) -> None:
        super().__init__(drawing)
        self.numbers: OutlierNumbers | None = None
        self.granularities: Granularities | None = None
        self.attribution: Attribution | None = None
        self.decomposition: Decomposition | None = None
        self.chosen = 0
        self.std: float | None = None
        """Of the tensor without an injected outlier."""
        self._looked: Look | None = None
        """What the parts that are shown are of."""
        self._std_of: tuple[str, str, str] | None = None
        glyphs = drawing.glyphs
        self.words = Static(id="outlier-words", markup=False)
        self.field = Field(compact=True, select_on_focus=True, id="outlier-field")
        self.message = Static(id="outlier-message", markup=False)
        self.list = TonedLines(
            lambda w, h: listing_lines(w, h, glyphs, self.numbers, self.attribution),
            id="outlier-list",
        )
        self.bars = GranularityBars(
            lambda w, h: granularity_lines(w, h, glyphs, self.granularities),
            id="outlier-granularities",
        )
        self.curve = TonedLines(
            lambda w, h: threshold_lines(w, h, glyphs, self.decomposition, self.chosen),
            id="outlier-thresholds",
        )

    def compose(self) -> ComposeResult:
        with Horizontal(id="outlier-line"):
            yield self.words
            yield self.field
        yield self.message
        with Horizontal(id="outlier-parts"):
            yield self.list
            with Vertical(id="outlier-right"):
                yield self.bars
                yield self.curve

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < 84, "-narrow")
        self.set_class(width < 64, "-tiny")
        self.set_class(width >= 120, "-wide")
        self.set_class(height < 22, "-short")

    # Looking

    async def look(self, look: Look, activity: Activity) -> None:
        if self._looked is None or look.model != self._looked.model:
            self._clear()
        self._looked = look
        self._show_words(look.subject.inject)

        def heard(label: str) -> Callable[[float, object], None]:
            return lambda fraction, _: activity(label, fraction)

        feed = self.panel.feed
        self.numbers = await ask_outliers(feed, look, heard("outliers"))
        subject = (look.model, look.subject.tensor, look.subject.source)
        if look.subject.inject is None:
            self.std, self._std_of = self.numbers.std, subject
        elif self._std_of != subject:
            self.std = None
        self._found()
        self.granularities = await ask_granularities(feed, look, heard("error by granularity"))
        self._found()
        elements = self.numbers.row_total * self.numbers.column_total
        self.attribution = await ask_attribution(feed, look, elements, heard("columns"))
        self._found()
        before = self.decomposition
        self.decomposition = await ask_decomposition(feed, look, heard("LLM.int8() thresholds"))
        self._keep_choice(before)
        self._found()

    def _found(self) -> None:
        """More is known: draw it, and say what it means."""
        self.remove_class("-empty", "-trouble")
        looked = self._looked
        inject = None if looked is None else looked.subject.inject
        self._show_words(inject)
        for part in (self.list, self.bars, self.curve):
            part.update()
        if looked is None or self._stale(looked):
            return
        if inject is not None:
            self.sentence = injection_sentence(inject, self.granularities, self.std)
        else:
            self.sentence = outlier_sentence(self.numbers, self.granularities, self.attribution)

    def _stale(self, looked: Look) -> bool:
        """Whether some of what a sentence speaks of is still of another scheme or subject."""
        scheme = looked.schemes[looked.active]
        injected = looked.subject.inject is not None
        found = self.granularities
        if found is None or found.scheme != scheme or bool(found.before) != injected:
            return True
        return not injected and (self.attribution is None or self.attribution.scheme != scheme)

    def _keep_choice(self, before: Decomposition | None) -> None:
        """The slider stays at its threshold where the thresholds are the same."""
        found = self.decomposition
        assert found is not None
        same = before is not None and [p.threshold for p in before.points] == [
            p.threshold for p in found.points
        ]
        if not same:
            blamed = 0 if self.numbers is None else len(self.numbers.outlier_columns)
            self.chosen = first_choice(found, blamed)

    def _clear(self) -> None:
        self.numbers = self.granularities = self.attribution = self.decomposition = None
        self.sentence = ""

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        if keep:
            return
        if trouble or not message or self.numbers is None:
            self._clear()
            self._looked = None
            self.message.update(message)
            self.set_class(trouble, "-trouble")
            self.add_class("-empty")

    def _show_words(self, inject: Injection | None) -> None:
        self.words.set_class(inject is not None, "-injected")
        if inject is None:
            self.words.update("as stored; i puts an outlier in")
            return
        size = sigmas_text(inject, self.std) or "outlier"
        place = place_text(inject)
        value = format_value(inject.value, 4)
        self.words.update(f"{size} at {place}: {value};  + doubles, - halves, I takes it out")

    def focus_start(self) -> bool:
        self.screen.set_focus(self.bars)
        return True

    def maximise_target(self) -> Widget | None:
        return self.bars

    def drawing_changed(self) -> None:
        for part in (self.list, self.bars, self.curve):
            part.update()

    # Injecting

    @property
    def _matrix(self) -> tuple[int, int] | None:
        """Rows and columns of what is looked at, once that is known."""
        if self.numbers is None:
            return None
        return self.numbers.row_total, self.numbers.column_total

    @property
    def _injection(self) -> Injection | None:
        return self.panel.shown.inject

    @property
    def typing(self) -> bool:
        return self.field.has_focus

    def leave(self) -> None:
        self.remove_class("-typing")
        self.panel.body.focus_start()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        if action == "inject":
            return not self.panel.body.typing and self._matrix is not None
        if action in ("clear_injection", "resize"):
            return self._injection is not None and not self.typing
        if action == "threshold":
            return self.decomposition is not None and len(self.decomposition.points) > 1
        return True

    def action_inject(self) -> None:
        injection = self._injection
        self.field.placeholder = EXAMPLES
        self.field.value = injection_text(injection) if injection is not None else "20 sigma"
        self.add_class("-typing")
        self.screen.set_focus(self.field)  # not focus(), which waits: keys may come together

    @on(Input.Submitted, "#outlier-field")
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        if self._apply(event.value):
            self.leave()

    def _apply(self, text: str) -> bool:
        """Look at the tensor with the outlier that was typed; whether it is one."""
        if self._matrix is None:
            return False
        try:
            wanted = parse_injection(text, self._matrix, self.std, self._injection)
        except UsageError as error:
            self.panel.refused(str(error))
            return False
        self.panel.look_at(inject=wanted)
        return True

    def on_key(self, event: events.Key) -> None:
        """Up and down in the field change the outlier while it is typed."""
        if not self.typing or event.key not in ("up", "down"):
            return
        event.stop()
        event.prevent_default()
        if self._apply(self.field.value):
            self.action_resize(1 if event.key == "up" else -1)
            if self._injection is not None:
                self.field.value = injection_text(self._injection)

    @on(GranularityBars.Resized)
    def _resized(self, message: GranularityBars.Resized) -> None:
        message.stop()
        self.action_resize(message.direction)

    def action_resize(self, direction: int) -> None:
        injection = self._injection
        if injection is None:
            self.panel.refused("No outlier is injected: i puts one in.")
            return
        try:
            larger = scaled(injection, FACTOR**direction)
        except UsageError as error:
            self.panel.refused(str(error))
            return
        self.panel.look_at(inject=larger)

    def action_clear_injection(self) -> None:
        self.panel.look_at(inject=None)

    # The threshold

    def action_threshold(self, direction: int) -> None:
        found = self.decomposition
        if found is not None and found.points:
            self.chosen = max(0, min(len(found.points) - 1, self.chosen + direction))
            self.curve.update()

    # What the shell asks for

    def export_data(self) -> dict[str, Any] | None:
        if self.numbers is None:
            return None
        parts = (self.numbers, self.granularities, self.attribution, self.decomposition)
        return outliers_data(*parts, chosen=self.chosen)

    def copy_text(self) -> str | None:
        if self.numbers is None or self._looked is None:
            return None
        subject = self._looked.subject
        lines = ["  ".join((subject.title, *subject.words)), ""]
        for part in (self.list, self.bars, self.curve):
            lines += [*part.text_lines(90, 40), ""]
        return "\n".join([*lines, self.sentence])
