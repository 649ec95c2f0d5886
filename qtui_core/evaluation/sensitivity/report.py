"""The result of an assignment of schemes to tensors, as data, and its sentence."""

from __future__ import annotations

import math
from collections import Counter

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.sensitivity.settings import Objective
from qtui_core.inspection.sentences import not_finite
from qtui_core.quant.measure import decibels
from qtui_core.quantities import plural

#: The name of the option that leaves a tensor as it is stored.
AS_STORED = "as stored"


@dataclass(frozen=True)
class TensorChoice:
    """The scheme of one tensor; None leaves it as stored. `error` is its part of the total: in
    nats a token if `nats`, with the standard error `stderr` over windows; else a relative error."""

    name: str
    parameters: int
    scheme: str | None
    nbytes: int
    error: float
    nats: bool = False
    stderr: float | None = None

    PRINTED = (
        ("tensor", "name"),
        "scheme",
        ("bytes", "nbytes"),
        ("relative_error", lambda choice: None if choice.nats else choice.error),
        ("kl", lambda choice: choice.error if choice.nats else None),
        ("kl_stderr", "stderr"),
    )


@dataclass(frozen=True)
class FrontierPoint:
    """The least error with `nbytes` bytes for the model: if `nats`, the sum of the KL divergences
    by each tensor alone, nats a token; else a relative error. `sqnr_db` is that in decibels; None
    if there is no error, or if it is in nats."""

    nbytes: int
    bits_per_parameter: float
    error: float
    sqnr_db: float | None
    nats: bool = False

    PRINTED = (
        ("bytes", "nbytes"),
        "bits_per_parameter",
        ("relative_error", lambda point: None if point.nats else point.error),
        "sqnr_db",
        ("kl_sum", lambda point: point.error if point.nats else None),
    )


@dataclass(frozen=True)
class UniformPoint:
    """One scheme for every tensor."""

    scheme: str
    point: FrontierPoint

    PRINTED = ("scheme", ("", "point"))


@dataclass(frozen=True)
class Sensitivity:
    """The assignment for a budget of bytes, and the frontier around it. `bound` is a lower bound on
    the error of any assignment within the budget, equal to that of `point` if `exact`; `stderr` the
    standard error of the sum in nats, over windows; `read` what the model read, in words; and
    `because` why it is weighed by weights if nobody chose that."""

    by: Objective
    budget: int
    point: FrontierPoint
    bound: float
    exact: bool
    choices: tuple[TensorChoice, ...]
    frontier: tuple[FrontierPoint, ...]
    uniform: tuple[UniformPoint, ...]
    conclusion: str
    read: str = ""
    stderr: float | None = None
    because: str = ""

    PRINTED = (
        ("weighed_by", "by"),
        ("budget_bytes", "budget"),
        ("", "point"),
        ("kl_sum_stderr", "stderr"),
        ("relative_error_bound", lambda result: None if result.point.nats else result.bound),
        ("kl_sum_bound", lambda result: result.bound if result.point.nats else None),
        "exact",
        ("assignment", "choices"),
        "frontier",
        "uniform",
        "read",
        "because",
    )

    @property
    def schemes(self) -> dict[str, str | None]:
        """The scheme of each tensor by name, None for one that stays as stored."""
        return {choice.name: choice.scheme for choice in self.choices}


#: A smaller gain is not mentioned.
NOTICEABLE_DB = 0.1


def conclude_sensitivity(result: Sensitivity, nonfinite: int) -> str:
    """What the assignment achieves with which schemes, and how much that gains over one scheme for
    every tensor. `nonfinite`: values that no error counts."""
    point, choices = result.point, result.choices
    if not choices:
        return "No tensor could be quantized, so there is nothing to assign: every byte is kept."
    counts = Counter(choice.scheme or AS_STORED for choice in choices)
    tensors = [(scheme, plural(count, "tensor")) for scheme, count in counts.most_common(3)]
    parts = [f"{n} {s}" if s == AS_STORED else f"{s} for {n}" for s, n in tensors]
    if len(counts) > 3:
        parts.append(f"{len(counts) - 3} other schemes for the rest")
    broken = f"{not_finite(nonfinite, 'in float32')}. " if nonfinite else ""
    text = (
        f"{broken}At {point.bits_per_parameter:.2f} bits per parameter the best assignment "
        f"{_quality(result)} with {', '.join(parts)}"
    )
    smaller = [u for u in result.uniform if u.point.nbytes <= point.nbytes and u.point.error]
    if not smaller or not point.error:
        return f"{text}."
    best = min(smaller, key=lambda uniform: uniform.point.error)
    smallest = point.nbytes == result.frontier[0].nbytes
    if counts == {best.scheme: len(choices)} and not smallest:
        return f"{text}: no better assignment was found in that budget."
    nearer = "nearer" if point.nats else "more"
    if (gain := _gain_db(best.point, point)) >= NOTICEABLE_DB:
        much = f"{10 ** (gain / 10):.2f} times" if point.nats else f"{gain:z.1f} dB"
        bits = f"{best.point.bits_per_parameter:.2f}"
        same = bits == f"{point.bits_per_parameter:.2f}"
        size = " in the same bytes" if same else f", which takes {bits} bits"
        return f"{text}, {much} {nearer} than {best.scheme} for every tensor{size}."
    if smallest:
        return f"{text}: these schemes allow no smaller one."
    return f"{text}, hardly {nearer} than {best.scheme} for every tensor."


def _quality(result: Sensitivity) -> str:
    point = result.point
    if not point.error:
        return "keeps every value exactly"
    if point.nats:
        measured = "measured" if result.by == "kl" else "estimated"
        return (
            f"is {point.error:.2g} nats a token from the original by the sum of what each tensor "
            f"was {measured} to do alone,"
        )
    return f"keeps {decibels(point.error):z.1f} dB"


def _gain_db(before: FrontierPoint, after: FrontierPoint) -> float:
    """By how many decibels the error is less; 0 if one has none."""
    return 10 * math.log10(before.error / after.error) if before.error and after.error else 0.0
