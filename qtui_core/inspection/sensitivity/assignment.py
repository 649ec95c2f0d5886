"""Chooses an option for each tensor, so that the bytes fit and the error is least.

This is the multiple-choice knapsack problem. The whole frontier, the least error for every number
of bytes, is found by adding one tensor at a time to the set of pairs (bytes, error) that no other
pair beats in both. The sets stay small because tensors of the same shape cost the same. A set that
grows beyond a limit is thinned. Then the linear relaxation of the problem gives a second answer;
the better of the two is taken, with a bound on how far it can be from the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.inspection.sensitivity.relaxation import GreedyPath, Option

#: Pairs kept of a frontier. With 10,000, a model of 300 matrices and 8 options takes about two
#: seconds.
MAX_PAIRS = 10_000
#: With more tensors than this, a thinned frontier is large and worse than the relaxation's answer.
MAX_THINNED = 1000


@dataclass(frozen=True)
class Assignment:
    """An option for each tensor, by its index among the tensor's options.

    `bound` is a lower bound on the error of any assignment with the same bytes or fewer; it equals
    `error` if this assignment is known to be the best.
    """

    chosen: tuple[int, ...]
    nbytes: int
    error: float
    bound: float


@dataclass(frozen=True, eq=False)
class _Step:
    """The pairs after one more tensor, and for each pair its predecessor and the option taken."""

    nbytes: npt.NDArray[np.int64]
    error: npt.NDArray[np.float64]
    before: npt.NDArray[np.int32]
    option: npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Frontier:
    """Pairs (bytes, error), bytes ascending and error descending, that no assignment beats in both;
    all such pairs if `exact`. `steps` is empty if there were too many tensors to thin."""

    tensors: tuple[tuple[Option, ...], ...]
    steps: tuple[_Step, ...]
    exact: bool

    @property
    def nbytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each pair, int64 `[pairs]`."""
        return self.steps[-1].nbytes if self.exact else self._greedy.nbytes

    @property
    def error(self) -> npt.NDArray[np.float64]:
        """Error of each pair, float64 `[pairs]`."""
        return self.steps[-1].error if self.exact else self._greedy.error

    @cached_property
    def _greedy(self) -> GreedyPath:
        return GreedyPath(self.tensors)

    def best_within(self, budget: int) -> Assignment | None:
        """The assignment of least error with at most `budget` bytes; None if nothing fits."""
        added = self._by_adding(budget)
        if self.exact:
            return added
        chosen = self._greedy.best_within(budget)
        if chosen is None:
            return None
        options = [options[i] for options, i in zip(self.tensors, chosen, strict=True)]
        error = math.fsum(option.error for option in options)
        bound = min(error, self._greedy.bound(budget))
        if added is not None and added.error < error:
            return replace(added, bound=min(added.error, bound))
        return Assignment(chosen, sum(option.nbytes for option in options), error, bound)

    def _by_adding(self, budget: int) -> Assignment | None:
        if not self.steps:
            return None
        last = self.steps[-1]
        pair = int(np.searchsorted(last.nbytes, budget, side="right")) - 1
        if pair < 0:
            return None
        chosen: list[int] = []
        nbytes, error = int(last.nbytes[pair]), float(last.error[pair])
        for step in reversed(self.steps[1:]):
            chosen.append(int(step.option[pair]))
            pair = int(step.before[pair])
        return Assignment(tuple(reversed(chosen)), nbytes, error, error)


def frontier(tensors: Sequence[Sequence[Option]], max_pairs: int = MAX_PAIRS) -> Frontier:
    """The frontier of tensors with at least one option each.

    Raises ValueError for a tensor without options.
    """
    if not all(tensors):
        raise ValueError("every tensor needs at least one option")
    kept = tuple(tuple(options) for options in tensors)
    zero = np.zeros(1, np.int64)
    steps = [_Step(zero, zero.astype(np.float64), zero.astype(np.int32), zero.astype(np.int16))]
    exact = True
    for options in kept:
        step = _add_tensor(steps[-1], options)
        if step.nbytes.size > max_pairs:
            if len(kept) > MAX_THINNED:
                return Frontier(kept, (), exact=False)
            step, exact = _thin(step, max_pairs), False
        steps.append(step)
    return Frontier(kept, tuple(steps), exact)


def _add_tensor(last: _Step, options: Sequence[Option]) -> _Step:
    cost = np.array([o.nbytes for o in options], np.int64)
    harm = np.array([o.error for o in options], np.float64)
    nbytes = np.add.outer(cost, last.nbytes).reshape(-1)
    error = np.add.outer(harm, last.error).reshape(-1)
    # Sort by bytes, and for equal bytes by error; then keep each pair with less error than all
    # before it.
    order = np.lexsort((error, nbytes))
    least = np.minimum.accumulate(error[order])
    beats = np.append(True, least[1:] < least[:-1])
    kept = order[beats]
    option, before = np.divmod(kept, last.nbytes.size)
    return _Step(nbytes[kept], error[kept], before.astype(np.int32), option.astype(np.int16))


def _thin(step: _Step, max_pairs: int) -> _Step:
    """The pair of least error in each of `max_pairs` equal ranges of bytes, and the first pair."""
    low, high = int(step.nbytes[0]), int(step.nbytes[-1])
    edges = low + (high - low) * np.arange(1, max_pairs) // (max_pairs - 1)
    last_in_range = np.searchsorted(step.nbytes, edges, side="right") - 1
    kept = np.unique(np.append(0, last_in_range))
    return _Step(step.nbytes[kept], step.error[kept], step.before[kept], step.option[kept])
