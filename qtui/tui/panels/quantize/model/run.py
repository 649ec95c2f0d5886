"""The state of the Model view: what it evaluates, and what is known of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from qtui.report.evaluation.document import frontier
from qtui_core.dataclass import dataclass
from qtui_core.evaluation.results import Evaluation, EvaluationRow
from qtui_core.evaluation.settings import (
    USUAL_SCHEMES,
    WINDOW,
    EvaluationSettings,
    usual_windows,
)
from qtui_core.schemes.scheme import Scheme

#: The most windows that keys choose.
MOST_WINDOWS: Final = 1024


class EvaluationState(StrEnum):
    """The state of an evaluation. LOST: the engine ended meanwhile, and with it what it knew. The
    reason of FAILED is in `trouble`."""

    NOTHING = "nothing"
    RUNNING = "running"
    STOPPED = "stopped"
    LOST = "lost"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class WindowsRead:
    """What is read now: the scheme, and its windows, from `first` to `last`, counted from 1."""

    name: str
    first: int
    last: int


@dataclass
class ModelRun:
    """What is evaluated, and what is known.

    Attributes:
        model: of the figures.
        schemes: of the list: A and B of the panel, then those of `others` that differ.
        others: schemes besides A and B.
        windows: None means the default.
        found: the latest result; None before there is one.
        fraction: of the evaluation, while it runs.
        cursor: the line of the list, 0 for the original.
        picture_alone: whether only the picture is shown.
        asked: the names of the schemes that the last evaluation was asked for.
    """

    model: str = ""
    schemes: tuple[Scheme, ...] = ()
    others: tuple[Scheme, ...] = tuple(map(Scheme.parse, USUAL_SCHEMES))
    text: str | None = None
    windows: int | None = None
    gpu: bool = False
    state: EvaluationState = EvaluationState.NOTHING
    trouble: str = ""
    found: Evaluation | None = None
    fraction: float = 0.0
    cursor: int = 0
    picture_alone: bool = False
    asked: frozenset[str] = frozenset()

    def list_schemes(self, of_panel: Sequence[Scheme]) -> None:
        """Lists the schemes of the panel, which may have changed, before the others."""
        self.schemes = tuple(dict.fromkeys((*of_panel, *self.others)))
        self.cursor = min(self.cursor, len(self.schemes))

    @property
    def settings(self) -> EvaluationSettings:
        """What the next evaluation is asked for."""
        return EvaluationSettings(
            schemes=self.schemes,
            text=self.text,
            windows=self.windows,
            device="cuda" if self.gpu else "cpu",
        )

    def begin(self) -> None:
        """Begins to evaluate. Schemes that are read now stay in the list if A or B changes."""
        self.others = tuple(dict.fromkeys((*self.others, *self.schemes)))
        self.asked = frozenset(map(str, self.schemes))
        self.state, self.trouble, self.fraction = EvaluationState.RUNNING, "", 0.0

    def hear(self, fraction: float, found: Evaluation | None) -> None:
        """Takes the progress, and the result so far if there is more of it."""
        self.fraction = fraction
        if found is not None:
            self.found = found

    def end(self, state: EvaluationState) -> None:
        """Ends an evaluation that is not done. What is known says that it is partial."""
        self.state, found = state, self.found
        if found is None or len(found.rows) < 2:
            self.found = None
        elif not found.ended:
            told = f"Stopped after {self._done(found)}. {found.conclusion}"
            self.found = replace(found, ended="stopped", conclusion=told)

    def _done(self, found: Evaluation) -> str:
        text, count = found.begun.text, len(found.begun.candidates) - 1
        some = f"{len(found.rows) - 1} of {count} schemes had read "
        every = len(found.rows) > count
        return f"{'' if every else some}{found.windows:,} of {text.windows:,} windows"

    @property
    def reading(self) -> WindowsRead | None:
        """What is read now; None before it is known."""
        if self.state is not EvaluationState.RUNNING or self.found is None or self.found.ended:
            return None
        begun = self.found.begun
        # Parts follow each other batch by batch, in equal shares of the progress.
        part = min(begun.parts - 1, int(self.fraction * begun.parts + 1e-9))
        batch, number = divmod(part, len(begun.candidates))
        first = sum(begun.batches[:batch])
        return WindowsRead(begun.candidates[number].name, first + 1, first + begun.batches[batch])

    @property
    def rows(self) -> tuple[EvaluationRow, ...]:
        """The rows of the schemes in the list: the original, then by bits, the most first."""
        if self.found is None or not self.found.rows:
            return ()
        original, *others = self.found.rows
        listed = {str(scheme) for scheme in self.schemes}
        kept = [row for row in others if row.name in listed]
        kept.sort(key=lambda row: (-row.nbytes, row.kl_mean or 0.0))
        return (original, *kept)

    @property
    def best(self) -> frozenset[str]:
        """The names of the schemes on the frontier."""
        return frozenset(row.name for row in frontier(self.rows))

    @property
    def missing(self) -> tuple[str, ...]:
        """The schemes of the list without a row, in the order in which they are read."""
        known = {row.name for row in self.rows}
        return tuple(text for text in map(str, self.schemes) if text not in known)

    @property
    def taken_out(self) -> tuple[str, ...]:
        """The schemes that the result counts and the list has no longer."""
        if self.found is None:
            return ()
        known = {row.name for row in self.rows}
        return tuple(row.name for row in self.found.rows if row.name not in known)

    def window_count(self, parameters: int) -> int:
        """The windows of the next evaluation, at most: a short text has fewer."""
        return self.windows or usual_windows(WINDOW, parameters)
