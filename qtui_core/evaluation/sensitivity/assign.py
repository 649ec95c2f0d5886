"""Chooses schemes for tensors: the least total error within a budget, and what more bytes would
gain.

Weighed by weights, the error of a tensor is its squared error, and the total is relative to the
energy of all matrices, as in the totals of an inspection. Weighed by predictions, it is the KL
divergence of the model with only this tensor quantized, in nats a token; the total is their sum,
which leaves out that errors of several tensors meet.

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
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from qtui_core.answers import PredictionErrors
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.evaluation.sensitivity.report import (
    FrontierPoint,
    Sensitivity,
    TensorChoice,
    UniformPoint,
    conclude_sensitivity,
)
from qtui_core.evaluation.sensitivity.settings import Objective
from qtui_core.inspection.conclude import recommended_scheme
from qtui_core.inspection.report import Inspection, TensorReport
from qtui_core.quant.measure import decibels
from qtui_core.quantities import plural

#: Points of the frontier that are kept for a curve.
CURVE_POINTS = 160
#: The default budget as a multiple of the bytes of the recommended scheme for all tensors. With no
#: more bytes than that there may be none to give to the tensors that gain most.
ROOM = 1.1


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


@dataclass(frozen=True)
class TensorOptions:
    """The ways to store one tensor: schemes (None leaves it as stored), with the bytes and the part
    of the total error of each; in nats, `windows` has it for each window, `[schemes][windows]`."""

    name: str
    parameters: int
    schemes: tuple[str | None, ...]
    options: tuple[Option, ...]
    windows: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Weighing:
    """The options of all tensors, weighed by `by`. `kept_bytes` are those of tensors to which no
    scheme applies. `nonfinite` counts values that were read and are left out of the errors. `read`
    says what the model read, and `because` why it did not, as in `Sensitivity`."""

    by: Objective
    tensors: tuple[TensorOptions, ...]
    kept_bytes: int
    parameters: int
    nonfinite: int = 0
    read: str = ""
    because: str = ""

    @property
    def nats(self) -> bool:
        """Whether errors are in nats a token; else they are relative."""
        return self.by != "weights"


def weigh(
    inspection: Inspection, measured: PredictionErrors | None = None, because: str = ""
) -> Weighing:
    """Options with the errors of weights that the inspection measured; or, if `measured`, which is
    of the same tensors and schemes, with the divergence of the model that has only this tensor
    quantized."""
    quantized = [tensor for tensor in inspection.tensors if tensor.errors]
    energy = sum(tensor.energy for tensor in quantized) or 1.0
    nats = {} if measured is None else measured.nats

    def options_of(tensor: TensorReport) -> TensorOptions:
        info = tensor.info
        errors = [(e.relative_mse or 0.0) * tensor.energy / energy for e in tensor.errors]
        if measured is not None:
            errors = [math.fsum(windows) / len(windows) for windows in nats[info.name]]
        sizes = [*(error.bytes for error in tensor.errors), info.nbytes]
        return TensorOptions(
            info.name,
            info.parameters,
            (*(str(error.scheme) for error in tensor.errors), None),
            tuple(map(Option, sizes, [*errors, 0.0])),
            nats.get(info.name, ()),
        )

    read = ""
    if measured is not None:
        read = (
            f"{plural(measured.windows, 'window')} of {measured.window:,} tokens of the first half "
            f"of {measured.text}, {measured.windows * measured.scored:,} tokens scored"
        )
    return Weighing(
        "weights" if measured is None else measured.by,
        tuple(map(options_of, quantized)),
        sum(tensor.info.nbytes for tensor in inspection.tensors if not tensor.errors),
        sum(tensor.info.parameters for tensor in inspection.tensors),
        sum(t.statistics.nan + t.statistics.inf for t in quantized if t.statistics),
        read,
        because,
    )


def default_budget(inspection: Inspection, weighing: Weighing) -> int:
    """Bytes: a tenth more than the single scheme takes that an inspection recommends for all
    tensors."""
    best = recommended_scheme(inspection.schemes, inspection.tensors) or 0
    options = [tensor.options[best] for tensor in weighing.tensors]
    return int(ROOM * (weighing.kept_bytes + sum(option.nbytes for option in options)))


def assign_schemes(weighing: Weighing, budget: int) -> Sensitivity:
    """The assignment of least error within `budget` bytes for the whole model.

    Raises UsageError if even the smallest options do not fit.
    """
    frontier = Frontier([tensor.options for tensor in weighing.tensors])
    best = frontier.best_within(budget - weighing.kept_bytes)
    if best is None:
        least = _point(weighing, int(frontier.nbytes[0]), 0.0)
        raise UsageError(
            f"A budget of {plural(budget, 'byte')} "
            f"({8 * budget / weighing.parameters:.2f} bits per parameter) cannot be met: these "
            f"schemes make the tensors no smaller than {least.nbytes:,} bytes "
            f"({least.bits_per_parameter:.2f}). Name a smaller scheme, or raise the budget."
        )
    chosen = list(zip(weighing.tensors, best.chosen, strict=True))
    windows = [tensor.windows[index : index + 1] for tensor, index in chosen]
    result = Sensitivity(
        by=weighing.by,
        budget=budget,
        point=_point(weighing, best.nbytes, best.error),
        bound=best.bound,
        exact=best.bound == best.error,
        choices=tuple(
            TensorChoice(
                tensor.name,
                tensor.parameters,
                tensor.schemes[index],
                tensor.options[index].nbytes,
                tensor.options[index].error,
                weighing.nats,
                _stderr(own),
            )
            for (tensor, index), own in zip(chosen, windows, strict=True)
        ),
        frontier=_curve(weighing, frontier),
        uniform=_uniform(weighing),
        conclusion="",
        read=weighing.read,
        stderr=_stderr([rows for own in windows for rows in own]),
        because=weighing.because,
    )
    return replace(result, conclusion=conclude_sensitivity(result, weighing.nonfinite))


def _stderr(by_window: Sequence[Sequence[float]]) -> float | None:
    """The standard error of the mean over windows of the sum of some tensors' errors; None for one
    window, or without errors by window."""
    if not by_window or len(by_window[0]) < 2:
        return None
    sums = np.sum(by_window, axis=0)
    return float(sums.std(ddof=1) / np.sqrt(sums.size))


def _point(weighing: Weighing, nbytes: int, error: float) -> FrontierPoint:
    total = nbytes + weighing.kept_bytes
    bits = 8 * total / weighing.parameters if weighing.parameters else 0.0
    nats = weighing.nats
    return FrontierPoint(total, bits, error, None if nats else decibels(error), nats)


def _curve(weighing: Weighing, frontier: Frontier) -> tuple[FrontierPoint, ...]:
    """Points of the frontier at about equal distances in bytes, including both ends."""
    sizes, errors = frontier.nbytes, frontier.error
    wanted = np.linspace(sizes[0], sizes[-1], CURVE_POINTS)
    at = np.unique(np.searchsorted(sizes, wanted, side="right") - 1)
    return tuple(_point(weighing, int(sizes[i]), float(errors[i])) for i in at)


def _uniform(weighing: Weighing) -> tuple[UniformPoint, ...]:
    points = []
    for index, scheme in enumerate(weighing.tensors[0].schemes if weighing.tensors else ()):
        options = [tensor.options[index] for tensor in weighing.tensors]
        nbytes, error = sum(o.nbytes for o in options), sum(o.error for o in options)
        if scheme is not None:
            points.append(UniformPoint(scheme, _point(weighing, nbytes, error)))
    return tuple(points)
