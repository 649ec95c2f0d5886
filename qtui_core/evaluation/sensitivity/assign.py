"""Chooses schemes for tensors: the least total error within a budget, and what more bytes would
gain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtui_core.errors import UsageError
from qtui_core.evaluation.sensitivity.options import Weighing
from qtui_core.evaluation.sensitivity.relaxation import Frontier
from qtui_core.evaluation.sensitivity.report import (
    FrontierPoint,
    Sensitivity,
    TensorChoice,
    UniformPoint,
    conclude_sensitivity,
)
from qtui_core.inspection.conclude import recommended_scheme
from qtui_core.inspection.report import Inspection
from qtui_core.quant.measure import decibels
from qtui_core.quantities import plural

#: Points of the frontier that are kept for a curve.
CURVE_POINTS = 160
#: The default budget as a multiple of the bytes of the recommended scheme for all tensors. With no
#: more bytes than that there may be none to give to the tensors that gain most.
ROOM = 1.1


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
        least = int(frontier.nbytes[0]) + weighing.kept_bytes
        raise UsageError(
            f"A budget of {plural(budget, 'byte')} "
            f"({8 * budget / weighing.parameters:.2f} bits per parameter) cannot be met: these "
            f"schemes make the tensors no smaller than {least:,} bytes "
            f"({8 * least / weighing.parameters:.2f}). "
            "Name a smaller scheme, or raise the budget."
        )
    chosen = list(zip(weighing.tensors, best.chosen, strict=True))
    windows = [tensor.windows[index : index + 1] for tensor, index in chosen]
    choices = tuple(
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
    )
    point = _point(weighing, best.nbytes, best.error)
    uniform, curve = _uniform(weighing, frontier), _curve(weighing, frontier)
    return Sensitivity(
        by=weighing.by,
        budget=budget,
        point=point,
        bound=best.bound,
        exact=best.bound == best.error,
        choices=choices,
        frontier=curve,
        uniform=uniform,
        conclusion=conclude_sensitivity(weighing, point, choices, uniform, curve),
        read=weighing.read,
        stderr=_stderr([each for own in windows for each in own]),
        because=weighing.because,
    )


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


def _uniform(weighing: Weighing, frontier: Frontier) -> tuple[UniformPoint, ...]:
    points = []
    for index, scheme in enumerate(weighing.tensors[0].schemes if weighing.tensors else ()):
        if scheme is None:
            continue
        options = [tensor.options[index] for tensor in weighing.tensors]
        nbytes, error = sum(o.nbytes for o in options), sum(o.error for o in options)
        own = assigned = _point(weighing, nbytes, error)
        best = frontier.best_within(nbytes)
        if best is not None and best.error < error:
            assigned = _point(weighing, best.nbytes, best.error)
        points.append(UniformPoint(scheme, own, assigned))
    return tuple(points)
