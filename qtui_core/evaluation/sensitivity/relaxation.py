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
        # (bytes, error saved, number of the tensor, option after the step). The slopes of one
        # tensor fall, so its steps stay in order.
        self._steps = sorted(
            (
                (o[after].nbytes - o[b].nbytes, o[b].error - o[after].error, tensor, after)
                for tensor, (o, hull) in enumerate(zip(tensors, hulls, strict=True))
                for b, after in pairwise(hull)
            ),
            key=lambda step: -step[1] / step[0],
        )
        self._first = [hull[0] for hull in hulls]
        least = sum(options[i].nbytes for options, i in zip(tensors, self._first, strict=True))
        last = math.fsum(options[h[-1]].error for options, h in zip(tensors, hulls, strict=True))
        sizes = np.array([step[0] for step in self._steps], np.int64)
        saved = np.array([step[1] for step in self._steps], np.float64)
        self.nbytes: npt.NDArray[np.int64] = least + np.append(0, np.cumsum(sizes))
        # Summed from the end, where the error is smallest, so that it never falls below zero.
        self.error: npt.NDArray[np.float64] = last + np.append(np.cumsum(saved[::-1])[::-1], 0.0)

    def best_within(self, budget: int) -> Assignment | None:
        """The assignment of least error found with at most `budget` bytes; None if nothing fits."""
        taken = int(np.searchsorted(self.nbytes, budget, side="right")) - 1
        if taken < 0:
            return None
        chosen, left = list(self._first), budget - int(self.nbytes[taken])
        for _, _, tensor, after in self._steps[:taken]:
            chosen[tensor] = after
        bound = float(self.error[taken])
        for nbytes, saved, *_ in self._steps[taken : taken + 1]:
            bound = max(0.0, bound - saved / nbytes * left)
        self._spend(chosen, left)
        options = [options[i] for options, i in zip(self._tensors, chosen, strict=True)]
        error = math.fsum(option.error for option in options)
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


def lower_hull(options: Sequence[Option]) -> list[int]:
    """The indices of the options on the lower convex hull of (bytes, error), by bytes ascending."""
    hull: list[int] = []
    for index in sorted(range(len(options)), key=lambda i: (options[i].nbytes, options[i].error)):
        c = options[index]
        if hull and c.error >= options[hull[-1]].error:
            continue
        while len(hull) >= 2:
            a, b = options[hull[-2]], options[hull[-1]]
            below = (b.error - a.error) * (c.nbytes - a.nbytes)
            if below < (c.error - a.error) * (b.nbytes - a.nbytes):
                break  # b lies below the line from a to c
            hull.pop()
        hull.append(index)
    return hull
