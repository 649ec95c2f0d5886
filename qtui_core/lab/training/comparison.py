"""Trains recipes beside their float32 twin, and compares them over several seeds: differences, the
floor, curves and sentences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import Job, See
from qtui_core.lab.results import Cell, LabChart, LabColumn, LabLine
from qtui_core.lab.training.tasks import TASKS, LabSubject, subject_of
from qtui_core.lab.training.twins import (
    FLOORS,
    Recipe,
    TrainedRun,
    difference,
    null,
    paired,
    train,
)
from qtui_core.quantities import plural

TWIN: Final = "fp32"
NULL: Final = "null"
#: Ends the name of a recipe's second run, which rounds with other random numbers. The difference of
#: both runs is a floor for this recipe.
AGAIN: Final = "again"
#: Runs are chaotic if weights that differ by a millionth change the loss by more than this.
CHAOTIC: Final = 3e-4
#: A difference must exceed this many of its standard errors over the steps, of which there must be
#: at least FEWEST.
ERRORS: Final = 3
FEWEST: Final = 5
#: Each point of a curve is the mean of at least this many steps.
_SMOOTH: Final = 5


@dataclass(frozen=True)
class TrainedComparison:
    """Recipes that are trained beside float32 on the same batches, as the parts of an experiment.

    Attributes:
        settings, model: of the experiment: its steps, seeds, text, and `lr` or `rates`.
        names: of the recipes.
        recipe: makes one from its name and the seed of its random numbers.
        step: about how many seconds of one thread a step takes, by name, TWIN and NULL too.
        drawn: names of those that round at random. Each runs again with other random numbers.
        task: of TASKS.
        twin: makes the recipe of the twin from what it is trained on and the seed of its batches.
        before: whether the twin's held-out loss is measured before it trains.
        more: seconds that each run takes besides its steps.
    """

    settings: Mapping[str, Any]
    model: str
    names: Sequence[str]
    recipe: Callable[[str, int], Recipe]
    step: Callable[[str], float]
    drawn: Container[str] = ()
    task: str = "prose"
    twin: Callable[[LabSubject, int], Recipe] = lambda subject, seed: Recipe()
    before: bool = False
    more: float = 3.0

    def jobs(self) -> list[Job]:
        """A run of the twin, of the disturbed twin and of each recipe, for each rate and seed."""
        names = [TWIN, NULL, *self.names]
        names += [f"{name} {AGAIN}" for name in self.names if name in self.drawn]
        return [
            Job(
                run_key(name, rate, seed, self.settings),
                partial(self.run, name, rate, seed),
                TrainedRun,
                self.step(name.removesuffix(f" {AGAIN}")) * self.settings["steps"] + self.more,
            )
            for rate in rates_of(self.settings)
            for seed in self.settings["seeds"]
            for name in names
        ]

    def run(self, name: str, lr: float, seed: int, see: See) -> TrainedRun:
        """A run by its name."""
        subject = subject_of(TASKS[self.task], self.model, self.settings["text"])
        again = name.endswith(f" {AGAIN}")
        if name in (TWIN, NULL):
            recipe = self.twin(subject, seed) if name == TWIN else null()
        else:
            recipe = self.recipe(name.removesuffix(f" {AGAIN}"), seed + 10_000 * again)
        return train(
            subject,
            recipe,
            seed=seed,
            steps=self.settings["steps"],
            lr=lr,
            see=see,
            before=self.before and name == TWIN,
            after=name != NULL and not again,  # runs for a floor are compared by steps
        )


def rates_of(settings: Mapping[str, Any]) -> tuple[float, ...]:
    """The learning rates at which each recipe is run."""
    return settings.get("rates") or (settings["lr"],)


def run_key(name: str, rate: float, seed: int, settings: Mapping[str, Any]) -> str:
    """The key of a run's job."""
    return f"{name} {rate:g} {seed}" if settings.get("rates") else f"{name} {seed}"


@dataclass(frozen=True)
class Compared:
    """A recipe compared with its twin.

    Attributes:
        name: of the recipe.
        differences: the mean over the last steps, one for each seed, nats per token.
        held_out: the difference of the held-out losses at the end, one for each seed.
        error: the standard error of the mean difference over the steps of all seeds; None if there
            are too few steps.
        floor: the floor of all recipes, or the difference of two runs of this recipe that round
            with other random numbers, if that is larger.
        diverged: which tensor stopped being finite, and when; empty if none did.
        runs: one for each seed.
    """

    name: str
    differences: tuple[float, ...]
    held_out: tuple[float, ...]
    error: float | None
    floor: float | None
    diverged: str
    runs: tuple[TrainedRun, ...]

    @property
    def difference(self) -> float | None:
        return fmean(self.differences) if self.differences else None

    @property
    def held(self) -> float | None:
        return fmean(self.held_out) if self.held_out else None


class LabComparison:
    """The finished runs of an experiment, named `recipe seed`. The recipe `fp32` is the twin;
    `null` is the disturbed twin, whose weights start a millionth away."""

    def __init__(
        self, recipes: Sequence[str], seeds: Sequence[int], outcomes: Mapping[str, Any]
    ) -> None:
        self.seeds = tuple(seeds)
        self._outcomes = outcomes
        self.floor = self._apart(NULL, TWIN)
        self.compared = {name: found for name in recipes if (found := self._beside(name))}

    def run(self, name: str, seed: int) -> TrainedRun | None:
        found = self._outcomes.get(f"{name} {seed}")
        return found if isinstance(found, TrainedRun) else None

    def first(self, name: str) -> TrainedRun | None:
        """The run of the first seed that is done."""
        return next((run for seed in self.seeds if (run := self.run(name, seed))), None)

    def pairs(self, name: str, other: str = TWIN) -> list[tuple[TrainedRun, TrainedRun]]:
        """The runs of two recipes on the same batches, of the seeds that have both."""
        found = ((self.run(name, seed), self.run(other, seed)) for seed in self.seeds)
        return [(one, two) for one, two in found if one is not None and two is not None]

    def clears(self, value: float) -> bool:
        """Whether a difference exceeds the floor."""
        return self.floor is not None and abs(value) > FLOORS * self.floor

    @property
    def chaotic(self) -> str:
        """A sentence if a millionth on the weights changes the loss so much that no difference
        means anything; otherwise empty."""
        if self.floor is None or self.floor <= CHAOTIC:
            return ""
        return (
            f"These settings are chaotic: a millionth on the weights moves the loss by "
            f"{self.floor:.1g}; lower --lr or take fewer steps."
        )

    @property
    def broken(self) -> str:
        """A sentence if the twin itself diverged, so that nothing can be compared with it;
        otherwise empty."""
        for seed in self.seeds:
            run = self.run(TWIN, seed)
            if run is not None and run.diverged:
                if not math.isfinite(run.losses[0]):
                    return (
                        f"The loss of the model is not finite before any step ({run.first}), so "
                        f"nothing can be compared; its weights may hold NaN or infinities."
                    )
                return (
                    f"Float32 itself diverged at step {run.diverged} ({run.first} is not finite), "
                    f"so nothing can be compared; lower --lr."
                )
        return ""

    def without_answer(self, lr: float) -> str | None:
        """A sentence on why the recipes cannot be told apart at a rate, "" if that is not known
        yet; None if they can."""
        if self.broken:
            return self.broken
        if not self.compared or self.floor is None:
            return ""
        if self.chaotic:
            return self.chaotic
        return None if lr else "At lr 0 nothing is learned, so nothing can be told apart."

    def gains(self) -> tuple[float, ...]:
        """How far the twin's held-out loss fell, one for each seed, nats per token."""
        found = []
        for seed in self.seeds:
            run = self.run(TWIN, seed)
            if run is not None and run.held_before is not None and run.held_after is not None:
                found.append(run.held_before - run.held_after)
        return tuple(found)

    def share_of_gain(self, name: str) -> float | None:
        """A recipe's share of its twin's gain in held-out loss; None if the twin gained nothing
        that exceeds the floor."""
        found = self.compared.get(name)
        gains = self.gains()
        if found is None or found.held is None or not gains:
            return None
        gain = fmean(gains)
        return 1 - found.held / gain if gain > 0 and self.clears(gain) else None

    @property
    def counted(self) -> str:
        """How many seeds the differences are of, in words: those that every recipe has come to the
        end of, which are fewer where a run was stopped."""
        return seeds_counted(
            min((len(found.runs) for found in self.compared.values()), default=0), len(self.seeds)
        )

    def rows(self) -> Iterator[dict[str, Cell]]:
        """A row for each recipe, with the cells that all experiments have."""
        for name, found in self.compared.items():
            spread = found.differences
            yield {
                "recipe": name,
                "d": found.difference,
                "d_low": min(spread, default=None),
                "d_high": max(spread, default=None),
                "held_out": found.held,
                "seen": self.seen(name),
                "seconds": fmean(run.seconds for run in found.runs),
                "diverged": found.diverged or None,
            }

    def charts(self, title: str, names: Container[str] | None = None) -> tuple[LabChart, ...]:
        """The differences from the twin over the steps, of all recipes or those of these names,
        with the floor shaded and a band for the seeds."""
        lines = []
        for name in self.compared:
            if names is not None and name not in names:
                continue
            curves = [
                _smoothed([a - b for a, b in zip(run.losses, twin.losses, strict=False)])
                for run, twin in self.pairs(name)
            ]
            if not curves:
                continue
            short = min(map(len, curves))
            columns = [[curve[i] for curve in curves] for i in range(short)]
            lines.append(
                LabLine(
                    name,
                    tuple(map(fmean, columns)),
                    low=tuple(map(min, columns)),
                    high=tuple(map(max, columns)),
                )
            )
        if not lines:
            return ()
        return (LabChart(title, "step", "loss − fp32's", tuple(lines), floor=self.floor),)

    def seen(self, name: str) -> str | None:
        """What a recipe's difference is: "diverged", "no difference", "worse" or "better"; None if
        it is not known yet."""
        found = self.compared[name]
        if found.diverged:
            return "diverged"
        if found.floor is None or found.difference is None:
            return None
        small = found.error is None or abs(found.difference) <= ERRORS * found.error
        if small or abs(found.difference) <= FLOORS * found.floor:
            return "no difference"
        return "worse" if found.difference > 0 else "better"

    def _apart(self, one: str, other: str) -> float | None:
        """How much two runs of a seed differ, for the seed where they differ most: the size of the
        mean difference over the last steps plus its standard error, because the mean alone may be
        near zero by chance. None if there are no such runs."""
        found = []
        for steps in itertools.starmap(paired, self.pairs(one, other)):
            if steps:
                error = stdev(steps) / len(steps) ** 0.5 if len(steps) > 1 else 0.0
                found.append(abs(fmean(steps)) + error)
        return max(found, default=None)

    def _beside(self, name: str) -> Compared | None:
        """A recipe compared with its twin on the same batches; None if either has no run."""
        runs, differences, held, diverged = [], [], [], ""
        steps: list[float] = []
        for run, twin in self.pairs(name):
            runs.append(run)
            if run.diverged:
                diverged = f"step {run.diverged}: {run.first}"
                continue
            d = difference(run, twin)
            if d is not None:
                differences.append(d)
                steps += paired(run, twin)
            if run.held_after is not None and twin.held_after is not None:
                held.append(run.held_after - twin.held_after)
        if not runs:
            return None
        error = stdev(steps) / len(steps) ** 0.5 if len(steps) >= FEWEST else None
        own = self._apart(f"{name} {AGAIN}", name)
        floor = self.floor if self.floor is None or own is None else max(self.floor, own)
        return Compared(name, tuple(differences), tuple(held), error, floor, diverged, tuple(runs))


def steps_counted(settings: Mapping[str, Any]) -> str:
    """The steps of each run: `1 step`, `40 steps`."""
    return plural(settings["steps"], "step")


def seeds_counted(done: int, wanted: int) -> str:
    """ "one seed", "3 seeds", or "1 of 3 seeds" before the end."""
    if done < wanted:
        return f"{done} of {wanted} seeds"
    return "one seed" if wanted == 1 else f"{wanted} seeds"


def best_rate(
    rates: Sequence[float], keys: Callable[[float], Sequence[str]], outcomes: Mapping[str, Any]
) -> float:
    """The learning rate with the least held-out loss over the runs of its keys. Rates at which a
    run diverged are not chosen; if every rate is excluded, the first is returned."""
    held: dict[float, float] = {}
    for rate in rates:
        runs = [run for key in keys(rate) if (run := outcomes.get(key)) is not None]
        losses = [run.held_after for run in runs if run.held_after is not None]
        if losses and len(losses) == len(runs):
            held[rate] = fmean(losses)
    return min(held, key=held.__getitem__, default=rates[0])


COLUMNS: Final = (
    LabColumn("recipe", "recipe"),
    LabColumn("d", "d train", "nats"),
    LabColumn("d_low", "lowest", "nats"),
    LabColumn("d_high", "highest", "nats"),
    LabColumn("held_out", "d held out", "nats"),
    LabColumn("seen", "against the floor"),
    LabColumn("seconds", "a step", "seconds"),
    LabColumn("diverged", "diverged"),
)


def _smoothed(values: list[float]) -> list[float]:
    """Moving averages; each is over the last few steps up to its own."""
    return [fmean(values[max(0, i - _SMOOTH + 1) : i + 1]) for i in range(len(values))]
