"""Chooses schemes for tensors: the least total error within a budget, and what more bytes would
gain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtui_core.errors import UsageError
from qtui_core.inspection.conclude import choose_total
from qtui_core.inspection.report import Inspection
from qtui_core.inspection.sensitivity.assignment import Frontier, frontier
from qtui_core.inspection.sensitivity.conclude import conclude_sensitivity
from qtui_core.inspection.sensitivity.report import (
    AS_STORED,
    FrontierPoint,
    Sensitivity,
    TensorChoice,
    UniformPoint,
)
from qtui_core.inspection.sensitivity.weighing import Weighing
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
    measured = [t for t in inspection.schemes if t.relative_mse is not None]
    best = choose_total(measured, sum(t.info.nbytes for t in inspection.tensors))
    options = [t.options[t.schemes.index(str(best.scheme))] for t in weighing.tensors]
    return int(ROOM * (weighing.kept_bytes + sum(option.nbytes for option in options)))


def assign_schemes(weighing: Weighing, budget: int) -> Sensitivity:
    """The assignment of least error within `budget` bytes for the whole model.

    Raises UsageError if even the smallest options do not fit.
    """
    found = frontier([t.options for t in weighing.tensors])
    best = found.best_within(budget - weighing.kept_bytes)
    if best is None:
        least = int(found.nbytes[0]) + weighing.kept_bytes
        raise UsageError(
            f"A budget of {plural(budget, 'byte')} "
            f"({8 * budget / weighing.parameters:.2f} bits per parameter) cannot be met: these "
            f"schemes make the tensors no smaller than {least:,} bytes "
            f"({8 * least / weighing.parameters:.2f}). "
            "Name a smaller scheme, or raise the budget."
        )
    choices = tuple(
        TensorChoice(
            tensor.name,
            tensor.parameters,
            tensor.schemes[index],
            tensor.options[index].nbytes,
            tensor.options[index].error,
            weighing.nats,
            _stderr([tensor.windows[index]]) if index < len(tensor.windows) else None,
        )
        for tensor, index in zip(weighing.tensors, best.chosen, strict=True)
    )
    point = _point(weighing, best.nbytes, best.error)
    uniform = _uniform(weighing, found)
    curve = _curve(weighing, found)
    return Sensitivity(
        by=weighing.by,
        budget=budget,
        point=point,
        bound=best.bound,
        exact=best.bound == best.error,
        choices=choices,
        frontier=curve,
        uniform=uniform,
        unweighed=weighing.unweighed,
        tokens=weighing.tokens,
        conclusion=conclude_sensitivity(weighing, point, choices, uniform, curve),
        read=weighing.read,
        stderr=_stderr(
            [
                tensor.windows[index]
                for tensor, index in zip(weighing.tensors, best.chosen, strict=True)
                if index < len(tensor.windows)
            ]
        ),
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


def _curve(weighing: Weighing, found: Frontier) -> tuple[FrontierPoint, ...]:
    """Points of the frontier at about equal distances in bytes, including both ends."""
    wanted = np.linspace(found.nbytes[0], found.nbytes[-1], CURVE_POINTS)
    at = np.unique(np.searchsorted(found.nbytes, wanted, side="right") - 1)
    return tuple(_point(weighing, int(found.nbytes[i]), float(found.error[i])) for i in at)


def _uniform(weighing: Weighing, found: Frontier) -> tuple[UniformPoint, ...]:
    points = []
    schemes = weighing.tensors[0].schemes[:-1] if weighing.tensors else ()
    for index, scheme in enumerate(schemes):
        options = [t.options[index] for t in weighing.tensors]
        nbytes, error = sum(o.nbytes for o in options), sum(o.error for o in options)
        own = _point(weighing, nbytes, error)
        best = found.best_within(nbytes)
        assigned = own
        # A thinned frontier may miss even this assignment.
        if best is not None and best.error < error:
            assigned = _point(weighing, best.nbytes, best.error)
        points.append(UniformPoint(scheme or AS_STORED, own, assigned))
    return tuple(points)
