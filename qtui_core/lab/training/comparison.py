"""Trains recipes beside their float32 twin, and compares them over several seeds: differences, the
floor, curves and sentences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.job import Job
from qtui_core.lab.results import Cell, LabChart, LabLine, LabPart
from qtui_core.lab.training import twins
from qtui_core.lab.training.tasks import TASKS, LabSubject, LabTask, subject_of
from qtui_core.lab.training.twins import FLOORS, Recipe, TrainedRun, difference, paired
from qtui_core.quantities import plural

TWIN: Final = "fp32"
NULL: Final = "null"
#: Ends the name of a recipe's second run, which rounds with other random numbers. The difference of
#: both runs is a floor for this recipe.
AGAIN: Final = " again"
#: Runs are chaotic if weights that differ by a millionth change the loss by more than this.
CHAOTIC: Final = 3e-4
#: A difference must exceed this many of its standard errors over the steps, of which there must be
#: at least FEWEST.
ERRORS: Final = 3
FEWEST: Final = 5
#: Each point of a curve is the mean of at least this many steps.
_SMOOTH: Final = 5

#: Runs of two recipes on the same batches.
Pairs = Sequence[tuple[TrainedRun, TrainedRun]]


def _twin(subject: LabSubject, seed: int, name: str) -> Recipe:
    return Recipe() if name == TWIN else twins.null()


@dataclass(frozen=True)
class TrainedComparison:
    """Recipes that are trained beside float32 on the same batches, as the parts of an experiment.

    Attributes:
        settings, model: of the experiment: its steps, seeds, text and learning rate.
        names: of the recipes.
        recipe: makes one from its name and the seed of its random numbers.
        step: about how many seconds of one thread a step takes, by name, TWIN and NULL too.
        drawn: names of those that round at random. Each runs again with other random numbers.
        task: what is trained.
        twin: makes the recipe of TWIN or NULL from what it is trained on and the seed of its
            batches.
        before: whether the twin's held-out loss is measured before it trains.
        more: seconds that each run takes besides its steps.
        apart: what tells these runs from those of another comparison of the experiment; it follows
            their names in their keys.
    """

    settings: Mapping[str, Any]
    model: str
    names: Sequence[str]
    recipe: Callable[[str, int], Recipe]
    step: Callable[[str], float]
    drawn: Collection[str] = ()
    task: LabTask = TASKS["prose"]
    twin: Callable[[LabSubject, int, str], Recipe] = _twin
    before: bool = False
    more: float = 3.0
    apart: str = ""

    def jobs(self) -> list[LabPart]:
        """A run of the twin, of the disturbed twin and of each recipe, for each seed."""
        names = [TWIN, NULL, *self.names, *(f"{n}{AGAIN}" for n in self.names if n in self.drawn)]
        return [
            LabPart(
                f"{name}{self.apart} {seed}",
                partial(self.run, name, seed),
                TrainedRun,
                self.step(name.removesuffix(AGAIN)) * self.settings["steps"] + self.more,
            )
            for seed in self.settings["seeds"]
            for name in names
        ]

    def run(self, name: str, seed: int, job: Job) -> TrainedRun:
        """A run by its name."""
        subject = subject_of(self.task, self.model, self.settings["text"])
        again = name.endswith(AGAIN)
        if name in (TWIN, NULL):
            recipe = self.twin(subject, seed, name)
        else:
            recipe = self.recipe(name.removesuffix(AGAIN), seed + 10_000 * again)
        return twins.train(
            *(subject, recipe, seed, self.settings["steps"], self.settings["lr"], job),
            before=self.before and name == TWIN,
            after=name != NULL and not again,  # runs for a floor are compared by steps
        )


class Compared:
    """A recipe beside its twin on the same batches, in nats per token.

    Attributes:
        runs: one for each seed that is done.
        diverged: which tensor stopped being finite, and when; empty if none did.
        differences: the mean over the last steps, one for each seed; `difference` is their mean.
        held: the difference of the held-out losses at the end, the mean over the seeds.
        seen: "diverged", "no difference", "worse" or "better"; None if that is not known yet.
    """

    def __init__(self, pairs: Pairs, floor: float | None) -> None:
        """`floor` is that of all recipes, or the difference of two runs of this recipe that round
        with other random numbers, if that is larger."""
        self.runs = [run for run, _ in pairs]
        ill = [run for run in self.runs if run.diverged]
        self.diverged = f"step {ill[-1].diverged}: {ill[-1].first}" if ill else ""
        self.differences = [d for one, twin in pairs if (d := difference(one, twin)) is not None]
        self.difference = mean(self.differences)
        self.held = mean(
            [
                run.held_after - twin.held_after
                for run, twin in pairs
                if run.held_after is not None and twin.held_after is not None
            ]
        )
        self.seen: str | None = None
        if ill:
            self.seen = "diverged"
        elif floor is not None and self.difference is not None:
            steps = [d for run, twin in pairs for d in paired(run, twin)]
            error = _error(steps) if len(steps) >= FEWEST else None
            size = abs(self.difference)
            self.seen = "worse" if self.difference > 0 else "better"
            if error is None or size <= ERRORS * error or size <= FLOORS * floor:
                self.seen = "no difference"


class LabComparison:
    """The finished runs of an experiment. The recipe `fp32` is the twin; `null` is the disturbed
    twin, whose weights start a millionth away.

    Attributes:
        seeds: those that are asked for.
        floor: how far the disturbed twin is from the twin; None if that is not known yet.
        compared: the recipes that have a run beside one of the twin.
    """

    def __init__(
        self, recipes: Sequence[str], settings: Mapping[str, Any], outcomes: Mapping[str, Any]
    ) -> None:
        self.seeds: tuple[int, ...] = tuple(settings["seeds"])
        self._lr, self._outcomes = settings["lr"], outcomes
        self.floor = self._apart(NULL, TWIN)
        self.compared: dict[str, Compared] = {}
        for name in recipes:
            if pairs := self.pairs(name):
                own = self._apart(f"{name}{AGAIN}", name) or 0.0
                floor = None if self.floor is None else max(self.floor, own)
                self.compared[name] = Compared(pairs, floor)

    def run(self, name: str, seed: int) -> TrainedRun | None:
        run = self._outcomes.get(f"{name} {seed}")
        return run if isinstance(run, TrainedRun) else None

    def runs(self, name: str) -> list[TrainedRun]:
        """The runs that are done, by seed."""
        return [run for seed in self.seeds if (run := self.run(name, seed))]

    def pairs(self, name: str, other: str = TWIN) -> Pairs:
        """The runs of two recipes on the same batches, of the seeds that have both."""
        both = ((self.run(name, seed), self.run(other, seed)) for seed in self.seeds)
        return [(one, two) for one, two in both if one is not None and two is not None]

    def held(self, name: str) -> float | None:
        """The held-out loss at the end, the mean over the seeds, nats per token."""
        return mean([run.held_after for run in self.runs(name) if run.held_after is not None])

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
        run = next((run for run in self.runs(TWIN) if run.diverged), None)
        if run is None:
            return ""
        at = f"at step {run.diverged}" if math.isfinite(run.losses[0]) else "before any step"
        return (
            f"Float32 itself diverged {at} ({run.first} is not finite), so nothing can be "
            f"compared; lower --lr, or look for weights that are not finite."
        )

    def without_answer(self) -> str | None:
        """A sentence on why the recipes cannot be told apart, "" if that is not known yet; None if
        they can."""
        if self.broken:
            return self.broken
        if not self.compared or self.floor is None:
            return ""
        if self.chaotic or self._lr:
            return self.chaotic or None
        return "At lr 0 nothing is learned, so nothing can be told apart."

    def share_of_gain(self, name: str) -> float | None:
        """A recipe's share of its twin's gain in held-out loss; None if the twin gained nothing
        that exceeds the floor."""
        compared = self.compared.get(name)
        gains = [
            run.held_before - run.held_after
            for run in self.runs(TWIN)
            if run.held_before is not None and run.held_after is not None
        ]
        if compared is None or compared.held is None or not gains or self.floor is None:
            return None
        gain = fmean(gains)
        return 1 - compared.held / gain if gain > FLOORS * self.floor else None

    @property
    def counted(self) -> str:
        """How many seeds the differences are of, in words: those that every recipe has come to the
        end of, which are fewer where a run was stopped."""
        done = min((len(one.runs) for one in self.compared.values()), default=0)
        return seeds_counted(done, len(self.seeds))

    def rows(self) -> Iterator[dict[str, Cell]]:
        """A row for each recipe, with the cells that all experiments have."""
        for name, one in self.compared.items():
            yield {
                "recipe": name,
                "d": one.difference,
                "d_low": min(one.differences, default=None),
                "d_high": max(one.differences, default=None),
                "held_out": one.held,
                "seen": one.seen,
                "seconds": fmean(run.seconds for run in one.runs),
                "diverged": one.diverged or None,
            }

    def chart(self, title: str) -> LabChart | None:
        """The differences from the twin over the steps, with the floor shaded and a band for the
        seeds. None without any."""
        lines = []
        for name in self.compared:
            curves = [
                _smoothed([a - b for a, b in zip(run.losses, twin.losses, strict=False)])
                for run, twin in self.pairs(name)
            ]
            columns = list(zip(*curves, strict=False))
            low, high = tuple(map(min, columns)), tuple(map(max, columns))
            lines.append(LabLine(name, tuple(map(fmean, columns)), low=low, high=high))
        if not lines:
            return None
        return LabChart(title, "step", "loss − fp32's", tuple(lines), floor=self.floor)

    def _apart(self, one: str, other: str) -> float | None:
        """How much two runs of a seed differ, for the seed where they differ most: the size of the
        mean difference over the last steps plus its standard error, because the mean alone may be
        near zero by chance. None if there are no such runs."""
        known = filter(None, itertools.starmap(paired, self.pairs(one, other)))
        return max((abs(fmean(steps)) + (_error(steps) or 0.0) for steps in known), default=None)


def mean(values: Sequence[float]) -> float | None:
    """None without values."""
    return fmean(values) if values else None


def _error(values: Sequence[float]) -> float | None:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def steps_counted(settings: Mapping[str, Any]) -> str:
    """The steps of each run: `1 step`, `40 steps`."""
    return plural(settings["steps"], "step")


def seeds_counted(done: int, wanted: int) -> str:
    """ "one seed", "3 seeds", or "1 of 3 seeds" before the end."""
    if done < wanted:
        return f"{done} of {wanted} seeds"
    return "one seed" if wanted == 1 else f"{wanted} seeds"


def _smoothed(values: list[float]) -> list[float]:
    """Moving averages; each is over the last few steps up to its own."""
    return [fmean(values[max(0, i - _SMOOTH + 1) : i + 1]) for i in range(len(values))]
