"""The picture of the Outliers view: what it asks for, and how it is laid out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from qtui.report.numbers import format_value
from qtui.screen.panel.asking import Phase
from qtui.screen.tensors.subject import Injection, Subject
from qtui.screen.widgets.drawing import Drawing
from qtui.tui.panels.quantize.loading import Activity, Look
from qtui.tui.panels.quantize.outliers.bars import GranularityBars
from qtui.tui.panels.quantize.outliers.data import (
    Attribution,
    Decomposition,
    Granularities,
    OutlierNumbers,
)
from qtui.tui.panels.quantize.outliers.detection import Detection
from qtui.tui.panels.quantize.outliers.export import outliers_data
from qtui.tui.panels.quantize.outliers.feed import (
    ask_attribution,
    ask_decomposition,
    ask_granularities,
    ask_outliers,
)
from qtui.tui.panels.quantize.outliers.granularity_bars import granularity_lines
from qtui.tui.panels.quantize.outliers.injecting import place_text, sigmas_text
from qtui.tui.panels.quantize.outliers.lines import TonedLines
from qtui.tui.panels.quantize.outliers.listing import listing_lines
from qtui.tui.panels.quantize.outliers.sentences import injection_sentence, outlier_sentence
from qtui.tui.panels.quantize.outliers.threshold_curve import threshold_lines
from qtui.tui.panels.quantize.outliers.typing_line import TypingLine
from qtui.tui.panels.quantize.views import View

Place = tuple[str, str, str, Injection | None]
"""Model, tensor, source and outlier."""


class OutlierPicture(View):
    """What is detected and the columns at the left; what granularity and LLM.int8() do about
    them at the right. `detection` is what it looks for."""

    DEFAULT_CSS = """
    OutlierPicture {
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

    def __init__(self, drawing: Drawing) -> None:
        super().__init__(drawing)
        self.detection = Detection()
        self.numbers: OutlierNumbers | None = None
        self.granularities: Granularities | None = None
        self.attribution: Attribution | None = None
        self.decomposition: Decomposition | None = None
        self.chosen = 0
        self.std: float | None = None
        """Of the tensor without an injected outlier."""
        self._looked: Look | None = None
        """What is being looked at, or was last."""
        self._held: dict[str, Place] = {}
        """What each part that is shown is of, by the name of its attribute."""
        self._limit_of: tuple[str, str, str] | None = None
        glyphs = drawing.glyphs
        self.line = TypingLine()
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

        feed = self.panel.feed
        numbers = await ask_outliers(feed, look, detection, heard("outliers"))
        # Those of one tensor never stand beside those of another, whatever comes next.
        self._keep_only(lambda place: place[:3] == _original(look))
        self.numbers, self._held["numbers"] = numbers, _place(look)
        self.std = self.numbers.std
        self._found()
        self.granularities = await ask_granularities(feed, look, heard("error by granularity"))
        self._held["granularities"] = _place(look)
        self._found()
        elements = self.numbers.row_total * self.numbers.column_total
        self.attribution = await ask_attribution(feed, look, detection, elements, heard("columns"))
        self._held["attribution"] = _place(look)
        self._found()
        self.decomposition = await ask_decomposition(
            feed, look, detection.threshold, heard("LLM.int8() thresholds")
        )
        self._held["decomposition"] = _place(look)
        self.chosen = self.decomposition.chosen
        self._found()

    def overdue(self, message: str) -> None:
        self._keep_current(message)

    def _keep_current(self, message: str) -> None:
        """Take away what is of another subject than the one that is named above; the message
        stands in place of all of it."""
        shown = self.panel.shown
        wanted = None if shown.entry is None else (shown.model, *_subject_place(shown.subject))
        self._keep_only(lambda place: place == wanted)
        if self.numbers is None:
            self.sentence = ""
            self.message.update(message)
            self.remove_class("-trouble")
            self.add_class("-empty")
        for part in (self.list, self.bars, self.curve):
            part.update()

    def _keep_only(self, good: Callable[[Place], bool]) -> None:
        for name in [name for name, place in self._held.items() if not good(place)]:
            setattr(self, name, None)
            del self._held[name]
            self.sentence = ""

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
            self.sentence = injection_sentence(inject, self.granularities, self.std, self.numbers)
        else:
            self.sentence = outlier_sentence(
                self.numbers, self.granularities, self.attribution, self.decomposition
            )

    def _stale(self, looked: Look) -> bool:
        """Whether some of what a sentence speaks of is still of another scheme, subject or
        detection."""
        scheme = looked.schemes[looked.active]
        injected = looked.subject.inject is not None
        granularities, columns, numbers = self.granularities, self.attribution, self.numbers
        if granularities is None or granularities.scheme != scheme:
            return True
        needed = ("numbers", "granularities", *(() if injected else ("attribution",)))
        if any(self._held.get(name) != _place(looked) for name in needed):
            return True
        if injected:
            return False
        if columns is None or numbers is None or columns.scheme != scheme:
            return True
        return (columns.detection, columns.limit) != (numbers.detection, numbers.limit)

    def _clear(self) -> None:
        self.numbers = self.granularities = self.attribution = self.decomposition = None
        self._held.clear()
        self.sentence = ""

    def say(self, message: str, *, keep: bool, trouble: bool) -> None:
        if keep:
            if self.is_mounted and self.panel.phase is Phase.STOPPED:
                self._keep_current(message)
            return
        if trouble or not message or self.numbers is None or self.panel.shown.entry is None:
            self._clear()
            self._looked = None
            self.message.update(message)
            self.set_class(trouble, "-trouble")
            self.add_class("-empty")
        else:
            self._keep_current(message)

    def _show_words(self, inject: Injection | None) -> None:
        if inject is None:
            how, numbers = f"by {self.detection.by}", self.numbers
            if numbers is not None and numbers.detection == "threshold" and numbers.std:
                how = f"by threshold of {numbers.limit / numbers.std:.2g} sigma"
            self.line.say(
                f"{how};  m another way;  l , . limit;  i puts an outlier in", injected=False
            )
            return
        size = sigmas_text(inject, self.std) or "outlier"
        place = place_text(inject)
        value = format_value(inject.value, 4)
        self.line.say(
            f"{size} at {place}: {value};  + doubles, - halves, I takes it out", injected=True
        )

    def focus_start(self) -> bool:
        self.screen.set_focus(self.bars)
        return True

    def maximise_target(self) -> Widget | None:
        return self.bars

    def drawing_changed(self) -> None:
        for part in (self.list, self.bars, self.curve):
            part.update()

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


def _original(look: Look) -> tuple[str, str, str]:
    """What is looked at, with or without an injected outlier."""
    return look.model, look.subject.tensor, look.subject.source


def _place(look: Look) -> Place:
    return look.model, *_subject_place(look.subject)


def _subject_place(subject: Subject) -> tuple[str, str, Injection | None]:
    return subject.tensor, subject.source, subject.inject
