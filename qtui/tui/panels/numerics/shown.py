"""The current state of the Numerics panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Final

from qtui.screen.plan.form import FormField
from qtui.tui.panels.numerics.lab_run import LabRun
from qtui_core.dataclass import dataclass
from qtui_core.lab.catalog import EXPERIMENTS, Experiment
from qtui_core.lab.results import ExponentHistogram, Picture
from qtui_core.lab.settings import Setting, Value

#: The largest scale of a histogram, as a base-2 logarithm.
_MOST_SHIFT: Final = 40


@dataclass
class NumericsShown:
    """The choices of the user, and all runs.

    Attributes:
        model: the model that experiments run on.
        missing_weights: why the model has no weights to run on; empty if it has, or until it is
            known.
        place: the index of the chosen experiment in the catalogue.
        changes: experiment -> the settings that the user changed.
        knob: the chosen line of the form.
        runs: experiment -> its runs, in the order in which they began.
        at: experiment -> the index of its current run.
        behind: how many runs earlier the run is that is drawn behind; 0 draws none.
        picture: the index of the current picture.
        scales: whether a heat map shows scales in place of its numbers.
        shift: the base-2 logarithm by which the user scales a histogram.
        top: the first line of the table that is shown.
    """

    model: str
    missing_weights: str = ""
    place: int = 0
    changes: dict[str, dict[str, Value]] = field(default_factory=dict)
    knob: int = 0
    runs: dict[str, list[LabRun]] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    behind: int = 1
    picture: int = 0
    scales: bool = False
    shift: int = 0
    top: int = 0

    @property
    def experiment(self) -> Experiment:
        return EXPERIMENTS[self.place]

    @property
    def settings(self) -> dict[str, Value]:
        """All settings of the chosen experiment with their values."""
        return self.experiment.settle(self.changes.get(self.experiment.name, {}))

    def set(self, row: Setting, value: Any) -> None:
        """Changes a setting. Raises UsageError for an impossible value."""
        value = row.check(value)
        changes = self.changes.setdefault(self.experiment.name, {})
        if value == row.default:
            changes.pop(row.name, None)
        else:
            changes[row.name] = value

    @property
    def row(self) -> Setting:
        """The setting of the chosen line of the form."""
        rows = self.experiment.settings
        return rows[min(self.knob, len(rows) - 1)]

    @property
    def kept(self) -> list[LabRun]:
        """The runs of the chosen experiment."""
        return self.runs.setdefault(self.experiment.name, [])

    @property
    def run(self) -> LabRun | None:
        """The current run of the chosen experiment; None without one."""
        kept = self.kept
        at = self.at.get(self.experiment.name, len(kept) - 1)
        return kept[at] if 0 <= at < len(kept) else None

    def show(self, run: LabRun) -> None:
        """Shows another run; the index of the picture stays."""
        self.at[run.experiment.name] = self.runs[run.experiment.name].index(run)
        self.top = self.shift = 0

    def keep(self, run: LabRun) -> None:
        """Adds a run, and shows it."""
        self.runs.setdefault(run.experiment.name, []).append(run)
        self.show(run)

    def choose(self, place: int) -> None:
        """Chooses an experiment by its index."""
        self.place = place % len(EXPERIMENTS)
        self.knob = self.picture = self.top = self.shift = 0

    def choose_named(self, name: str) -> None:
        """Chooses an experiment of the catalogue by its name."""
        self.choose([each.name for each in EXPERIMENTS].index(name))

    def keep_earlier(self, name: str, found: list[LabRun]) -> None:
        """Adds runs of earlier sessions before those of this one."""
        kept = self.runs.setdefault(name, [])
        at = self.at.get(name)
        kept[:0] = found
        if at is not None:
            self.at[name] = at + len(found)
        for number, run in enumerate(kept, 1):
            run.number = number

    @property
    def earlier(self) -> list[LabRun]:
        """The runs that can be drawn behind the current one, the previous run first."""
        run = self.run
        if run is None:
            return []
        others = self.kept[: self.kept.index(run)]
        return [each for each in reversed(others) if each.result and each.result.findings.pictures]

    @property
    def faint(self) -> LabRun | None:
        """The run that is drawn behind."""
        earlier = self.earlier
        return earlier[min(self.behind, len(earlier)) - 1] if self.behind and earlier else None

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return self.run.pictures if self.run else ()

    @property
    def drawn(self) -> Picture | None:
        """The current picture, with the user's scale; None without one."""
        pictures = self.pictures
        if not pictures:
            return None
        found = pictures[self.picture % len(pictures)]
        if isinstance(found, ExponentHistogram) and self.shift:
            return replace(found, shift=found.shift + self.shift)
        return found

    @property
    def drawn_behind(self) -> Picture | None:
        """The same picture of the run that is drawn behind; None if it has none."""
        faint, drawn = self.faint, self.drawn
        if faint is None or drawn is None or not (self.run and self.run.result):
            return None
        pictures = faint.pictures
        at = self.picture % len(self.pictures)
        same = at < len(pictures) and type(pictures[at]) is type(drawn)
        return pictures[at] if same else None

    def scale(self, by: int) -> None:
        """Doubles (1) or halves (-1) the values of a histogram."""
        self.shift = max(-_MOST_SHIFT, min(_MOST_SHIFT, self.shift + by))


def form_fields(shown: NumericsShown) -> list[FormField]:
    """The settings of the chosen experiment as lines of the form."""
    changes = shown.changes.get(shown.experiment.name, {})
    return [
        FormField(
            row.name,
            row.name.replace("_", " "),
            "settings",
            "none" if value is None else row.written(value),
            row.name in changes,
        )
        for row, value in zip(shown.experiment.settings, shown.settings.values(), strict=True)
    ]


def stepped(row: Setting, value: Value, by: int) -> Value:
    """The value that a key changes a setting to: the next name, with the first after the last; or
    the next step of a number, with the same at the ends."""
    if row.kind == "choice":
        names = row.allowed if row.default is not None else (None, *row.allowed)
        return names[(names.index(value) + by) % len(names)]
    if row.kind == "several":
        return _several(row, value, by)
    steps: Sequence[Any] = row.steps
    if not isinstance(value, int | float) or not steps:
        return value
    if by > 0:
        return next((step for step in steps if step > value), value)
    return next((step for step in reversed(steps) if step < value), value)


def _several(row: Setting, value: Value, by: int) -> Value:
    """The next choice of a setting with several names: all of them, or one alone."""
    choices: list[tuple[Any, ...]] = [(name,) for name in row.allowed]
    if isinstance(row.default, tuple) and row.default not in choices:
        choices.insert(0, row.default)
    at = choices.index(value) if value in choices else 0
    return choices[(at + by) % len(choices)]
