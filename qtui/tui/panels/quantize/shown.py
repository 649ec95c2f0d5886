"""The current state of the Quantize panel."""

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
from qtui.tui.panels.quantize.maps.picture import MapPicture
from qtui.tui.panels.quantize.tensor_reader import Finding, Look, SchemeErrors
from qtui_core.answers import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme


@dataclass
class QuantizeShown:
    """The state is filled piece by piece; None means not known yet. `errors` has an entry for each
    of `schemes`. `explanation` is the sentence about the content (`explained`), or about what is
    being done."""

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
        """The current subject. There must be an entry."""
        assert self.entry is not None
        return Subject(self.entry.name, self.source, self.inject)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of the chosen tensor, if there is one with elements."""
        return self.entry.shape if self.entry is not None and self.entry.elements else None

    @property
    def scheme(self) -> Scheme:
        """The active scheme."""
        return self.schemes[self.active]

    @property
    def look(self) -> Look:
        """The request for the current subject and schemes."""
        return Look(self.model, self.subject, tuple(map(str, self.schemes)), self.active)

    def take(self, finding: Finding) -> bool:
        """Stores a finding. Returns whether it is the sentence about the content."""
        match finding:
            case SchemeErrors():
                self.errors[finding.slot] = finding.numbers
            case TensorNumbers():
                self.numbers = finding
            case Explanation():
                self.explanation, self.explained = finding.sentence, True
        return isinstance(finding, Explanation)

    def choose(self, entry: TensorEntry) -> None:
        """Chooses a tensor as stored, and drops the answers about the previous one."""
        self.entry = entry
        self.look_at(WEIGHT, None)

    def look_at(self, source: str, inject: Injection | None) -> None:
        """Chooses the source and the outlier of the same tensor, and drops earlier answers."""
        self.source, self.inject = source, inject
        self.errors = [None] * len(self.schemes)
        self.map, self.histogram, self.numbers, self.element = None, None, None, None

    def set_scheme(self, scheme: Scheme) -> None:
        """Replaces the active scheme, and drops its errors."""
        self.schemes[self.active] = scheme
        if self.errors:
            self.errors[self.active] = None
