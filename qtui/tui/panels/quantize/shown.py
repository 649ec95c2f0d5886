"""What the Quantize panel shows at the moment."""

from __future__ import annotations

from dataclasses import field

from qtui.engine.answers.tensors import (
    Element,
    Explanation,
    ModelIndex,
    TensorEntry,
    TensorNumbers,
)
from qtui.engine.requests import Injection
from qtui.screen.tensors.subject import WEIGHT, Subject
from qtui.screen.widgets.histogram import HistogramData
from qtui.tui.panels.quantize.loading import Finding, Look, SchemeErrors
from qtui.tui.panels.quantize.maps.picture import MapPicture
from qtui_core.answers.tensors import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme


@dataclass
class QuantizeShown:
    """Filled piece by piece; None is what is not known yet. `errors` go with `schemes`.
    `explanation` is the sentence about what is shown, or about what is being done, and
    `explained` whether it is the former."""

    model: str
    index: ModelIndex | None = None
    entry: TensorEntry | None = None
    source: str = WEIGHT
    inject: Injection | None = None
    schemes: list[Scheme] = field(default_factory=list)
    active: int = 0
    errors: list[ErrorReport | None] = field(default_factory=list)
    map: MapPicture | None = None
    histogram: HistogramData | None = None
    numbers: TensorNumbers | None = None
    element: Element | None = None
    explanation: str = ""
    explained: bool = False

    @property
    def subject(self) -> Subject:
        """What is looked at; only while there is an entry."""
        assert self.entry is not None
        return Subject(self.entry.name, self.source, self.inject)

    @property
    def scheme(self) -> Scheme:
        """The scheme that the picture is of."""
        return self.schemes[self.active]

    @property
    def look(self) -> Look:
        """What is to be looked at."""
        return Look(self.model, self.subject, tuple(map(str, self.schemes)), self.active)

    def take(self, finding: Finding) -> bool:
        """More is known; whether that is what it means."""
        match finding:
            case SchemeErrors():
                self.errors[finding.slot] = finding.numbers
            case TensorNumbers():
                self.numbers = finding
            case Explanation():
                self.explanation, self.explained = finding.sentence, True
        return isinstance(finding, Explanation)

    def choose(self, entry: TensorEntry) -> None:
        """Another tensor as it is stored: nothing is known of it."""
        self.entry = entry
        self.look_at(WEIGHT, None)

    def look_at(self, source: str, inject: Injection | None) -> None:
        """Something else of the same tensor: nothing is known of it."""
        self.source, self.inject = source, inject
        self.errors = [None] * len(self.schemes)
        self.map, self.histogram, self.numbers, self.element = None, None, None, None

    def set_scheme(self, scheme: Scheme) -> None:
        """Another scheme in the place of the active one: its numbers are not known."""
        self.schemes[self.active] = scheme
        if self.errors:
            self.errors[self.active] = None
