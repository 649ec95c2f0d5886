"""Which option to take for each tensor, so that the bytes fit and the error is least.

This is the multiple-choice knapsack problem. The whole frontier, the least error for every
number of bytes, comes from adding one tensor at a time to the set of pairs (bytes, error) that
no other pair beats in both. The sets stay small because tensors of one shape cost the same; one
that grows beyond a limit is thinned, and then the linear relaxation of the problem says how far
from the best an answer can be at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

#: Pairs kept of a frontier. At 10,000 a model of 300 matrices and 8 options takes about two
#: seconds.
MAX_PAIRS = 10_000


@dataclass(frozen=True)
class Option:
    """One way to store a tensor: its bytes, and the error that it makes (additive, >= 0)."""

    nbytes: int
    error: float


@dataclass(frozen=True)
class Assignment:
    """An option for each tensor, by its index among the tensor's options.

    `bound` is an error that no assignment of the same bytes or fewer can be below: equal to
    `error` where this one is known to be best.
    """

    chosen: tuple[int, ...]
    nbytes: int
    error: float
    bound: float


@dataclass(frozen=True, eq=False)
class _Step:
    """The pairs after one more tensor, and for each the pair before and the option taken."""

    nbytes: npt.NDArray[np.int64]
    error: npt.NDArray[np.float64]
    before: npt.NDArray[np.int32]
    option: npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Frontier:
    """Pairs (bytes, error), bytes ascending and error descending, that no assignment beats in
    both; `exact` says whether none was thinned out."""

    tensors: tuple[tuple[Option, ...], ...]
    steps: tuple[_Step, ...]
    exact: bool

    @property
    def nbytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each pair, int64 `[pairs]`."""
        return self.steps[-1].nbytes

    @property
    def error(self) -> npt.NDArray[np.float64]:
        """Error of each pair, float64 `[pairs]`."""
        return self.steps[-1].error

    def best_within(self, budget: int) -> Assignment | None:
        """The least error in at most `budget` bytes; None where nothing fits."""
        at = int(np.searchsorted(self.nbytes, budget, side="right")) - 1
        if at < 0:
            return None
        chosen: list[int] = []
        nbytes, error, pair = int(self.nbytes[at]), float(self.error[at]), at
        for step in reversed(self.steps[1:]):
            chosen.append(int(step.option[pair]))
            pair = int(step.before[pair])
        bound = error if self.exact else min(error, lower_bound(self.tensors, budget))
        return Assignment(tuple(reversed(chosen)), nbytes, error, bound)


def frontier(tensors: Sequence[Sequence[Option]], max_pairs: int = MAX_PAIRS) -> Frontier:
    """The frontier of tensors with at least one option each.

    Raises ValueError for a tensor without options.
    """
    zero = np.zeros(1, np.int64)
    steps = [_Step(zero, zero.astype(np.float64), zero.astype(np.int32), zero.astype(np.int16))]
    exact = True
    for options in tensors:
        if not options:
            raise ValueError("every tensor needs at least one option")
        step = _add_tensor(steps[-1], options)
        if step.nbytes.size > max_pairs:
            step, exact = _thin(step, max_pairs), False
        steps.append(step)
    return Frontier(tuple(tuple(options) for options in tensors), tuple(steps), exact)


def _add_tensor(last: _Step, options: Sequence[Option]) -> _Step:
    cost = np.array([o.nbytes for o in options], np.int64)
    harm = np.array([o.error for o in options], np.float64)
    nbytes = np.add.outer(cost, last.nbytes).reshape(-1)
    error = np.add.outer(harm, last.error).reshape(-1)
    # By bytes, and of equal bytes the least error first; then each must beat all before it.
    order = np.lexsort((error, nbytes))
    least = np.minimum.accumulate(error[order])
    beats = np.append(True, least[1:] < least[:-1])
    kept = order[beats]
    option, before = np.divmod(kept, last.nbytes.size)
    return _Step(nbytes[kept], error[kept], before.astype(np.int32), option.astype(np.int16))


def _thin(step: _Step, max_pairs: int) -> _Step:
    """The pair of least error in each of `max_pairs` equal ranges of bytes, and the first."""
    low, high = int(step.nbytes[0]), int(step.nbytes[-1])
    edges = low + (high - low) * np.arange(1, max_pairs) // (max_pairs - 1)
    last_in_range = np.searchsorted(step.nbytes, edges, side="right") - 1
    kept = np.unique(np.append(0, last_in_range))
    return _Step(step.nbytes[kept], step.error[kept], step.before[kept], step.option[kept])


def lower_bound(tensors: Sequence[Sequence[Option]], budget: int) -> float:
    """The least error if tensors could be split between two options: the linear relaxation
    (Sinha and Zoltners 1979), which no assignment can be below. Infinite where nothing fits."""
    gains: list[tuple[float, int]] = []  # error saved by a byte, and how many bytes
    left, error = budget, 0.0
    for options in tensors:
        hull = _lower_hull(options)
        left -= hull[0].nbytes
        error += hull[0].error
        for small, large in pairwise(hull):
            step = large.nbytes - small.nbytes
            gains.append(((small.error - large.error) / step, step))
    if left < 0:
        return float("inf")
    for slope, step in sorted(gains, reverse=True):
        taken = min(step, left)
        error -= slope * taken
        left -= taken
        if not left:
            break
    return max(0.0, error)


def _lower_hull(options: Sequence[Option]) -> list[Option]:
    """The options on the lower convex hull of (bytes, error), bytes ascending."""
    hull: list[Option] = []
    for option in sorted(options, key=lambda o: (o.nbytes, o.error)):
        if hull and option.error >= hull[-1].error:
            continue
        while len(hull) >= 2 and _above(hull[-2], hull[-1], option):
            hull.pop()
        if hull and hull[-1].nbytes == option.nbytes:
            continue
        hull.append(option)
    return hull


def _above(a: Option, b: Option, c: Option) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b.error - a.error) * (c.nbytes - a.nbytes) >= (c.error - a.error) * (
        b.nbytes - a.nbytes
    )
