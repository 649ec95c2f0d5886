"""What the Numerics panel shows: an experiment, its settings, its runs, and which picture."""

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

#: A scale that values can be given in the picture, as a base-2 logarithm.
_MOST_SHIFT: Final = 40


@dataclass
class NumericsShown:
    """What is chosen, and every run that is kept.

    Attributes:
        model: that experiments run on.
        place: of the chosen experiment in the catalogue.
        changes: of each experiment, the settings that are not as usual.
        knob: the chosen line of the form.
        runs: of each experiment, in the order they began.
        at: of each experiment, which of its runs is shown.
        behind: how many runs before that one is drawn behind it; 0 for none.
        picture: which of its pictures.
        scales: whether a heat map says where scales lie in place of its numbers.
        shift: powers of two by which a histogram is scaled besides its own.
        top: lines of the table that are above its window.
    """

    model: str
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
        """Every setting of the chosen experiment with its value."""
        return self.experiment.settle(self.changes.get(self.experiment.name, {}))

    def set(self, row: Setting, value: Any) -> None:
        """Another value of a setting. Raises UsageError for what is none."""
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
        """The one that is shown."""
        kept = self.kept
        at = self.at.get(self.experiment.name, len(kept) - 1)
        return kept[at] if 0 <= at < len(kept) else None

    def show(self, run: LabRun) -> None:
        """Shows a run that is kept; the picture stays the one it was."""
        self.at[run.experiment.name] = self.runs[run.experiment.name].index(run)
        self.top = self.shift = 0

    def keep(self, run: LabRun) -> None:
        """Another run, which is shown from now on."""
        self.runs.setdefault(run.experiment.name, []).append(run)
        self.show(run)

    def choose(self, place: int) -> None:
        """Another experiment."""
        self.place = place % len(EXPERIMENTS)
        self.knob = self.picture = self.top = self.shift = 0

    def choose_named(self, name: str) -> None:
        """The experiment of this name, which is in the catalogue."""
        self.choose([each.name for each in EXPERIMENTS].index(name))

    def keep_earlier(self, name: str, found: list[LabRun]) -> None:
        """Runs of earlier sessions, before those of this one."""
        kept = self.runs.setdefault(name, [])
        at = self.at.get(name)
        kept[:0] = found
        if at is not None:
            self.at[name] = at + len(found)
        for number, run in enumerate(kept, 1):
            run.number = number

    @property
    def earlier(self) -> list[LabRun]:
        """Runs that can be drawn behind the one that is shown, the one just before it first."""
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
        """The picture that is looked at, scaled as it is chosen to be."""
        pictures = self.pictures
        if not pictures:
            return None
        found = pictures[self.picture % len(pictures)]
        if isinstance(found, ExponentHistogram) and self.shift:
            return replace(found, shift=found.shift + self.shift)
        return found

    @property
    def drawn_behind(self) -> Picture | None:
        """The same picture of the run that is drawn behind, where it has it."""
        faint, drawn = self.faint, self.drawn
        if faint is None or drawn is None or not (self.run and self.run.result):
            return None
        pictures = faint.pictures
        at = self.picture % len(self.pictures)
        same = at < len(pictures) and type(pictures[at]) is type(drawn)
        return pictures[at] if same else None

    def scale(self, by: int) -> None:
        """More or less of a scale."""
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
    """The value that a key steps to: the next of the names, around; of numbers the next of the
    steps, and at their ends the same."""
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
    """All of the names, or one after the other alone."""
    choices: list[tuple[Any, ...]] = [(name,) for name in row.allowed]
    if isinstance(row.default, tuple) and row.default not in choices:
        choices.insert(0, row.default)
    at = choices.index(value) if value in choices else 0
    return choices[(at + by) % len(choices)]
