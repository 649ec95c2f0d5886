"""What is known of outliers, part by part, and what each part is of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from qtui.engine.answers.outliers import (
    DecompositionSweep,
    ErrorByColumn,
    Granularities,
    OutlierNumbers,
)
from qtui.engine.requests import Injection
from qtui.screen.tensors.subject import Subject
from qtui.tui.panels.quantize.loading import Look
from qtui.tui.panels.quantize.outliers.sentences import injection_sentence, outlier_sentence

Place = tuple[str, str, str, Injection | None]
"""Model, tensor, source and outlier."""


class OutlierFindings:
    """The answers of the Outliers view; None is what is not known.

    Attributes:
        chosen: the threshold of the decomposition that the slider is on.
        std: of the tensor without an injected outlier.
    """

    def __init__(self) -> None:
        self.numbers: OutlierNumbers | None = None
        self.granularities: Granularities | None = None
        self.attribution: ErrorByColumn | None = None
        self.decomposition: DecompositionSweep | None = None
        self.chosen = 0
        self.std: float | None = None
        self._held: dict[str, Place] = {}
        """What each part is of, by the name of its attribute."""

    def hold(self, look: Look, **part: Any) -> None:
        """One more part is known of what is looked at."""
        for name, answer in part.items():
            setattr(self, name, answer)
            self._held[name] = place_of(look.model, look.subject)
        if self.numbers is not None and "numbers" in part:
            self.std = self.numbers.std
        if self.decomposition is not None and "decomposition" in part:
            self.chosen = self.decomposition.chosen

    def keep(self, good: Callable[[Place], bool]) -> bool:
        """Only the parts of these places; whether any goes."""
        gone = [name for name, place in self._held.items() if not good(place)]
        for name in gone:
            setattr(self, name, None)
            del self._held[name]
        return bool(gone)

    def clear(self) -> None:
        self.keep(lambda _: False)

    def sentence(self, looked: Look) -> str | None:
        """What they mean; None while some of what it would speak of is still of another scheme,
        subject or detection."""
        if self._stale(looked):
            return None
        inject = looked.subject.inject
        if inject is not None:
            return injection_sentence(inject, self.granularities, self.std, self.numbers)
        return outlier_sentence(
            self.numbers, self.granularities, self.attribution, self.decomposition
        )

    def _stale(self, looked: Look) -> bool:
        scheme = looked.schemes[looked.active]
        injected = looked.subject.inject is not None
        granularities, columns, numbers = self.granularities, self.attribution, self.numbers
        if granularities is None or granularities.scheme != scheme:
            return True
        needed = ("numbers", "granularities", *(() if injected else ("attribution",)))
        here = place_of(looked.model, looked.subject)
        if any(self._held.get(name) != here for name in needed):
            return True
        if injected:
            return False
        if columns is None or numbers is None or columns.scheme != scheme:
            return True
        return (columns.detection, columns.limit) != (numbers.detection, numbers.limit)

    def data(self) -> dict[str, Any] | None:
        """As JSON; None before there is anything."""
        if self.numbers is None:
            return None
        parts = (self.numbers, self.granularities, self.attribution, self.decomposition)
        return outliers_data(*parts, chosen=self.chosen)


def place_of(model: str, subject: Subject) -> Place:
    return model, subject.tensor, subject.source, subject.inject


def outliers_data(
    numbers: OutlierNumbers,
    granularities: Granularities | None,
    attribution: ErrorByColumn | None,
    decomposition: DecompositionSweep | None,
    *,
    chosen: int,
) -> dict[str, Any]:
    """Everything that is known, null where it is not; `threshold` is where the slider stands;
    what was detected, and beyond which limit, stands in `outliers`."""
    data: dict[str, Any] = {
        "outliers": dataclasses.asdict(numbers),
        "granularities": None if granularities is None else dataclasses.asdict(granularities),
        "attribution": None if attribution is None else dataclasses.asdict(attribution),
        "decomposition": None if decomposition is None else dataclasses.asdict(decomposition),
        "threshold": None,
    }
    if decomposition is not None and decomposition.points:
        data["threshold"] = decomposition.points[chosen].threshold
    return data
