"""The linear relaxation of choosing an option for each tensor, and assignments close to it.

If a tensor could be split between two options, the best choice would be greedy: start with the
smallest option of each, and take the steps along the lower convex hulls of (bytes, error), those
that save most error per byte first (Sinha and Zoltners 1979). After each whole step no tensor is
split, so that assignment is the best for its bytes. Between two such points the relaxation is below
every assignment by at most what one step saves, which is little if there are many tensors.
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


Tensors = Sequence[Sequence[Option]]


@dataclass(frozen=True, eq=False)
class _HullStep:
    """A step from one option on the hull of a tensor to the next; both by index."""

    tensor: int
    before: int
    after: int
    nbytes: int
    saved: float


class GreedyPath:
    """The assignments that the relaxation reaches without splitting a tensor.

    Attributes:
        nbytes: of each, ascending, int64 `[steps + 1]`.
        error: of each, descending, float64 `[steps + 1]`; the least possible for these bytes.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        hulls = [lower_hull(options) for options in tensors]
        steps = [
            _HullStep(
                index,
                small,
                large,
                options[large].nbytes - options[small].nbytes,
                options[small].error - options[large].error,
            )
            for index, (options, hull) in enumerate(zip(tensors, hulls, strict=True))
            for small, large in pairwise(hull)
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

    def best_within(self, budget: int) -> tuple[int, ...] | None:
        """The option of each tensor: all steps that fit in order, then those later ones that still
        fit. None if nothing fits."""
        taken = self._taken(budget)
        if taken < 0:
            return None
        chosen = list(self._first)
        left = budget - int(self.nbytes[0])
        for step in self._steps:
            if step.nbytes <= left and chosen[step.tensor] == step.before:
                chosen[step.tensor] = step.after
                left -= step.nbytes
        return tuple(chosen)

    def _taken(self, budget: int) -> int:
        """How many whole steps fit; -1 if not even the smallest options do."""
        return int(np.searchsorted(self.nbytes, budget, side="right")) - 1


def lower_hull(options: Sequence[Option]) -> list[int]:
    """The indices of the options on the lower convex hull of (bytes, error), by bytes ascending."""
    hull: list[int] = []
    for index in sorted(range(len(options)), key=lambda i: (options[i].nbytes, options[i].error)):
        option = options[index]
        if hull and option.error >= options[hull[-1]].error:
            continue
        while len(hull) >= 2 and _above(options[hull[-2]], options[hull[-1]], option):
            hull.pop()
        hull.append(index)
    return hull


def _above(a: Option, b: Option, c: Option) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b.error - a.error) * (c.nbytes - a.nbytes) >= (c.error - a.error) * (
        b.nbytes - a.nbytes
    )
