"""The answers about outliers that are known, and the request that each belongs to."""

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
from qtui.tui.panels.quantize.outliers.sentences import injection_sentence, outlier_sentence
from qtui.tui.panels.quantize.tensor_reader import Look

Place = tuple[str, str, str, Injection | None]
"""Model, tensor, source and outlier."""


class OutlierFindings:
    """The answers of the Outliers view; None means not known.

    Attributes:
        chosen: the index of the slider's threshold in the decomposition.
        std: the standard deviation of the tensor without an injected outlier.
    """

    def __init__(self) -> None:
        self.numbers: OutlierNumbers | None = None
        self.granularities: Granularities | None = None
        self.attribution: ErrorByColumn | None = None
        self.decomposition: DecompositionSweep | None = None
        self.chosen = 0
        self.std: float | None = None
        self._held: dict[str, Place] = {}
        """Name of an attribute -> the model, tensor, source and outlier that it belongs to."""

    def hold(self, look: Look, **part: Any) -> None:
        """Stores an answer to a request."""
        for name, answer in part.items():
            setattr(self, name, answer)
            self._held[name] = place_of(look.model, look.subject)
        if self.numbers is not None and "numbers" in part:
            self.std = self.numbers.std
        if self.decomposition is not None and "decomposition" in part:
            self.chosen = self.decomposition.chosen

    def keep(self, good: Callable[[Place], bool]) -> bool:
        """Drops the answers for which `good` is false. Returns whether any was dropped."""
        gone = [name for name, place in self._held.items() if not good(place)]
        for name in gone:
            setattr(self, name, None)
            del self._held[name]
        return bool(gone)

    def clear(self) -> None:
        self.keep(lambda _: False)

    def sentence(self, looked: Look) -> str | None:
        """The sentence of the view; None while an answer still belongs to another scheme, subject
        or detection."""
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
        """The answers as JSON; None before any are known."""
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
    """The known answers as JSON, with null for unknown ones. `threshold` is that of the slider;
    `outliers` has the detection and its limit."""
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
