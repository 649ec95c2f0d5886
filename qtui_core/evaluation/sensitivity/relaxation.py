"""Chooses an option for each tensor, so that the bytes fit and the error is least.

This is the multiple-choice knapsack problem. Its linear relaxation lets a tensor be split between
two options. It is solved by going along the lower convex hull of each tensor's (bytes, error) and
taking the step that saves most error a byte first (Sinha and Zoltners, The Multiple-Choice Knapsack
Problem, Operations Research 27, 1979). Its error is a lower bound for every assignment. The
assignment found here splits no tensor: it has all whole steps that fit, and spends what is left on
the changes of single tensors that save most. It is less than one step of one tensor above the
bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Option:
    """One way to store a tensor: its bytes and its error (additive, >= 0)."""

    nbytes: int
    error: float


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


@dataclass(frozen=True)
class _HullStep:
    """A step of a tensor from one option on its hull to the next, `after`."""

    tensor: int
    after: int
    nbytes: int
    saved: float


class Frontier:
    """The assignments that the relaxation reaches without splitting a tensor: the best of their
    bytes.

    Attributes:
        nbytes: of each, ascending, int64 `[steps + 1]`.
        error: of each, descending, float64 `[steps + 1]`.
    """

    def __init__(self, tensors: Sequence[Sequence[Option]]) -> None:
        """Raises ValueError for a tensor without options."""
        if not all(tensors):
            raise ValueError("every tensor needs at least one option")
        self._tensors = tensors
        hulls = [lower_hull(options) for options in tensors]
        steps = [
            _HullStep(tensor, after, o[after].nbytes - o[b].nbytes, o[b].error - o[after].error)
            for tensor, (o, hull) in enumerate(zip(tensors, hulls, strict=True))
            for b, after in pairwise(hull)
        ]
        # The slopes of one tensor fall, so its steps stay in order.
        self._steps = sorted(steps, key=lambda s: s.saved / s.nbytes, reverse=True)
        self._first = [hull[0] for hull in hulls]
        least = sum(options[i].nbytes for options, i in zip(tensors, self._first, strict=True))
        last = math.fsum(options[h[-1]].error for options, h in zip(tensors, hulls, strict=True))
        sizes = np.array([s.nbytes for s in self._steps], np.int64)
        saved = np.array([s.saved for s in self._steps], np.float64)
        self.nbytes: npt.NDArray[np.int64] = least + np.append(0, np.cumsum(sizes))
        # Summed from the end, where the error is smallest, so that it never falls below zero.
        self.error: npt.NDArray[np.float64] = last + np.append(np.cumsum(saved[::-1])[::-1], 0.0)

    def bound(self, budget: int) -> float:
        """A lower bound on the error of any assignment with at most `budget` bytes; infinite if
        nothing fits."""
        taken = self._taken(budget)
        if taken < 0:
            return math.inf
        error = float(self.error[taken])
        if taken < len(self._steps):
            step = self._steps[taken]
            error -= step.saved / step.nbytes * (budget - int(self.nbytes[taken]))
        return max(0.0, error)

    def best_within(self, budget: int) -> Assignment | None:
        """The assignment of least error found with at most `budget` bytes; None if nothing fits."""
        taken = self._taken(budget)
        if taken < 0:
            return None
        chosen = list(self._first)
        for step in self._steps[:taken]:
            chosen[step.tensor] = step.after
        self._spend(chosen, budget - int(self.nbytes[taken]))
        options = [options[i] for options, i in zip(self._tensors, chosen, strict=True)]
        error, bound = math.fsum(option.error for option in options), self.bound(budget)
        # Sums of the same errors in another order may differ.
        bound = error if math.isclose(bound, error, rel_tol=1e-12) else min(error, bound)
        return Assignment(tuple(chosen), sum(o.nbytes for o in options), error, bound)

    def _spend(self, chosen: list[int], left: int) -> None:
        """Changes options for the bytes that are left, where they save most; options inside the
        hull count too."""
        spent = True
        while spent:
            changes = [
                (now.error - option.error, tensor, index, option.nbytes - now.nbytes)
                for tensor, options in enumerate(self._tensors)
                for now in (options[chosen[tensor]],)
                for index, option in enumerate(options)
                if option.error < now.error and option.nbytes - now.nbytes <= left
            ]
            spent, changed = False, set()
            for _, tensor, index, nbytes in sorted(changes, reverse=True):
                if tensor not in changed and nbytes <= left:
                    chosen[tensor], left, spent = index, left - nbytes, True
                    changed.add(tensor)

    def _taken(self, budget: int) -> int:
        """How many whole steps fit; -1 if not even the smallest options do."""
        return int(np.searchsorted(self.nbytes, budget, side="right")) - 1


def lower_hull(options: Sequence[Option]) -> list[int]:
    """The indices of the options on the lower convex hull of (bytes, error), by bytes ascending."""
    hull: list[int] = []
    for index in sorted(range(len(options)), key=lambda i: (options[i].nbytes, options[i].error)):
        c = options[index]
        if hull and c.error >= options[hull[-1]].error:
            continue
        while len(hull) >= 2:
            a, b = options[hull[-2]], options[hull[-1]]
            if (b.error - a.error) * (c.nbytes - a.nbytes) < (c.error - a.error) * (
                b.nbytes - a.nbytes
            ):
                break  # b lies below the line from a to c
            hull.pop()
        hull.append(index)
    return hull
