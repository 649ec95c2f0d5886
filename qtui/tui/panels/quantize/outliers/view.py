"""The Outliers view: its picture, its keys, and what they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from qtui.engine.requests import Injection
from qtui.report.numbers import format_value
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.widgets.text_picture import TextPicture, in_rows
from qtui.tui.panels.quantize.outliers.detection import Detection
from qtui.tui.panels.quantize.outliers.feed import (
    ask_attribution,
    ask_decomposition,
    ask_granularities,
    ask_outliers,
)
from qtui.tui.panels.quantize.outliers.findings import OutlierFindings, Place, place_of
from qtui.tui.panels.quantize.outliers.granularity_bars import GranularityBars, granularity_lines
from qtui.tui.panels.quantize.outliers.injection import (
    EXAMPLES,
    injection_text,
    parse_injection,
    place_text,
    scaled,
    sigmas_text,
)
from qtui.tui.panels.quantize.outliers.keys import HELP, KEYS
from qtui.tui.panels.quantize.outliers.listing import listing_lines
from qtui.tui.panels.quantize.outliers.threshold_curve import threshold_lines
from qtui.tui.panels.quantize.outliers.typing_line import TypingLine
from qtui.tui.panels.quantize.tensor_reader import Activity, Look
from qtui.tui.panels.quantize.view import TensorView
from qtui_core.errors import UsageError
from qtui_core.schemes.scheme import Scheme

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

FACTOR = 2.0


class OutliersView(TensorView):
    """The outliers of the subject, and what they cost. At the left are the detected outliers and
    the columns, at the right the SQNR by granularity and under LLM.int8(). `detection` is the way
    to detect outliers, and its limit."""

    TITLE = "Outliers"
    HELP = HELP
    NUMBERS = False
    KEYS: ClassVar[tuple[Binding, ...]] = KEYS

    DEFAULT_CSS = """
    OutliersView {
        layout: vertical;
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

    def __init__(self, panel: QuantizePanel) -> None:
        super().__init__(panel)
        drawing = self.drawing
        self.detection = Detection()
        self.found = OutlierFindings()
        self._looked: Look | None = None
        """The current or last request of the panel."""
        self._limit_of: tuple[str, str, str] | None = None
        glyphs = drawing.glyphs
        self.line = TypingLine()
        self.message = Static(id="outlier-message", markup=False)
        found = self.found
        self.list = TextPicture(
            drawing,
            in_rows(lambda w, h: listing_lines(w, h, glyphs, found.numbers, found.attribution)),
            id="outlier-list",
            focus=False,
        )
        self.bars = GranularityBars(
            drawing,
            in_rows(lambda w, h: granularity_lines(w, h, glyphs, found.granularities)),
            id="outlier-granularities",
        )
        self.curve = TextPicture(
            drawing,
            in_rows(lambda w, h: threshold_lines(w, h, glyphs, found.decomposition, found.chosen)),
            id="outlier-thresholds",
            focus=False,
        )

    def compose(self) -> ComposeResult:
        yield self.line
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
        if self._limit_of != _original(look):
            self.detection = replace(self.detection, threshold=None)  # it was in another unit
        self._looked, self._limit_of = look, _original(look)
        detection = self.detection

        def heard(label: str) -> Callable[[float, object], None]:
            return lambda fraction, _: activity(label, fraction)

        feed, found = self.panel.feed, self.found
        numbers = await ask_outliers(feed, look, detection, heard("outliers"))
        # Answers about different tensors are never shown together.
        self._keep(lambda place: place[:3] == _original(look))
        found.hold(look, numbers=numbers)
        self._show_found()
        granularities = await ask_granularities(feed, look, heard("error by granularity"))
        found.hold(look, granularities=granularities)
        self._show_found()
        elements = numbers.row_total * numbers.column_total
        columns = await ask_attribution(feed, look, detection, elements, heard("columns"))
        found.hold(look, attribution=columns)
        self._show_found()
        thresholds = await ask_decomposition(
            feed, look, detection.threshold, heard("LLM.int8() thresholds")
        )
        found.hold(look, decomposition=thresholds)
        self._show_found()

    def overdue(self, message: str) -> None:
        self._keep_current(message)

    def _keep_current(self, message: str) -> None:
        """Removes the answers about another subject than the current one; if none is left, shows
        the message."""
        shown = self.panel.shown
        wanted = None if shown.entry is None else place_of(shown.model, shown.subject)
        self._keep(lambda place: place == wanted)
        if self.found.numbers is None:
            self.sentence = ""
            self.message.update(message)
            self.remove_class("-trouble")
            self.add_class("-empty")
        for part in (self.list, self.bars, self.curve):
            part.update()

    def _keep(self, good: Callable[[Place], bool]) -> None:
        if self.found.keep(good):
            self.sentence = ""

    def _show_found(self) -> None:
        """Draws the known answers, and sets the sentence."""
        self.remove_class("-empty", "-trouble")
        looked = self._looked
        inject = None if looked is None else looked.subject.inject
        self._show_words(inject)
        for part in (self.list, self.bars, self.curve):
            part.update()
        said = None if looked is None else self.found.sentence(looked)
        if said is not None:
            self.sentence = said

    def _clear(self) -> None:
        self.found.clear()
        self.sentence = ""

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        if keep:
            if self.is_mounted and self.panel.phase is AskingPhase.STOPPED:
                self._keep_current(message)
            return
        if trouble or not message or self.found.numbers is None or self.panel.shown.entry is None:
            self._clear()
            self._looked = None
            self.message.update(message)
            self.set_class(trouble, "-trouble")
            self.add_class("-empty")
        else:
            self._keep_current(message)

    def _show_words(self, inject: Injection | None) -> None:
        if inject is None:
            how, numbers = f"by {self.detection.by}", self.found.numbers
            if numbers is not None and numbers.detection == "threshold" and numbers.std:
                how = f"by threshold of {numbers.limit / numbers.std:.2g} sigma"
            self.line.say(
                f"{how};  m another way;  : , . limit;  i injects an outlier", injected=False
            )
            return
        size = sigmas_text(inject, self.found.std) or "outlier"
        place = place_text(inject)
        value = format_value(inject.value, 4)
        self.line.say(
            f"{size} at {place}: {value};  + doubles, - halves, x removes it", injected=True
        )

    def focus_start(self) -> bool:
        self.screen.set_focus(self.bars)
        return True

    def maximise_target(self) -> Widget | None:
        return self.bars

    # Hooks of the shell

    def export_data(self) -> dict[str, Any] | None:
        return self.found.data()

    def copy_text(self) -> str | None:
        if self.found.numbers is None or self._looked is None:
            return None
        subject = self._looked.subject
        lines = ["  ".join((subject.title, *subject.words)), ""]
        for part in (self.list, self.bars, self.curve):
            lines += [*part.text_for(90, 40), ""]
        return "\n".join([*lines, self.sentence])

    @property
    def typing(self) -> bool:
        return self.line.typing

    def leave(self) -> None:
        self.line.field.close()
        self.panel.body.focus_start()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action is possible now; the footer shows only keys of such actions."""
        if action == "inject":
            return not self.panel.body.typing and self.found.numbers is not None
        if action in ("detection", "limit"):
            return not self.typing and self.found.numbers is not None
        if action in ("clear_injection", "resize"):
            return self._injection is not None and not self.typing
        if action == "threshold":
            return self.found.decomposition is not None and len(self.found.decomposition.points) > 1
        return True

    @on(TypingLine.Entered)
    def _typed(self, message: TypingLine.Entered) -> None:
        message.stop()
        try:
            self._take_injection(message.text, message.step)
        except UsageError as error:
            self.panel.refused(str(error))
            return
        if not message.step:
            self.leave()

    # Injecting

    @property
    def _injection(self) -> Injection | None:
        return self.panel.shown.inject

    def action_inject(self) -> None:
        injection = self._injection
        text = injection_text(injection) if injection is not None else "20 sigma"
        self.line.start(text, EXAMPLES)

    def _take_injection(self, text: str, step: int) -> None:
        """Injects the typed outlier, or with a `step` a larger or smaller one. Raises UsageError
        for a text that is no outlier."""
        if self.found.numbers is None:
            return
        matrix = self.found.numbers.row_total, self.found.numbers.column_total
        wanted = parse_injection(text, matrix, self.found.std, self._injection)
        if step:
            wanted = scaled(wanted, FACTOR**step)
            self.line.field.value = injection_text(wanted)
        self.panel.look_at(inject=wanted)

    @on(GranularityBars.Moved)
    def _granularity_moved(self, message: GranularityBars.Moved) -> None:
        message.stop()
        found = self.found.granularities
        if found is None:
            return
        schemes = [row.scheme for row in found.rows]
        now = str(self.panel.shown.scheme)  # another key may have come before the answer
        if now in schemes:
            at = schemes.index(now) + message.by
            self.panel.take_scheme(Scheme.parse(schemes[max(0, min(at, len(schemes) - 1))]))

    def action_resize(self, direction: int) -> None:
        injection = self._injection
        if injection is None:
            self.panel.refused("No outlier is injected: i injects one.")
            return
        try:
            larger = scaled(injection, FACTOR**direction)
        except UsageError as error:
            self.panel.refused(str(error))
            return
        self.panel.look_at(inject=larger)

    def action_clear_injection(self) -> None:
        self.panel.look_at(inject=None)

    # Detecting

    def action_detection(self, direction: int) -> None:
        self._detect(self.detection.turned(direction))

    def action_limit(self, direction: int) -> None:
        if self.detection.by == "threshold":
            self.action_threshold(-direction)
            return
        try:
            self._detect(self.detection.stepped(direction))
        except UsageError as error:
            self.panel.refused(str(error))

    def action_threshold(self, direction: int) -> None:
        """Moves the slider, whose threshold is also the limit of the detection by threshold."""
        found = self.found.decomposition
        if found is None or not found.points:
            return
        self.found.chosen = max(0, min(len(found.points) - 1, self.found.chosen + direction))
        self.curve.update()
        moved = replace(self.detection, threshold=found.points[self.found.chosen].threshold)
        if moved.by == "threshold":
            self._detect(moved)
        self.detection = moved

    def _detect(self, detection: Detection) -> None:
        if detection != self.detection:
            self.detection = detection
            self.panel.look_again(pause=True)


def _original(look: Look) -> tuple[str, str, str]:
    """The model, tensor and source of a request, without the injected outlier."""
    return look.model, look.subject.tensor, look.subject.source
