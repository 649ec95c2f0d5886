"""The result of an assignment of schemes to tensors, as data."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.sensitivity.settings import Objective

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
    """One scheme for every tensor, and what an assignment with the same bytes achieves."""

    scheme: str
    point: FrontierPoint
    assigned: FrontierPoint

    PRINTED = (
        "scheme",
        ("", "point"),
        ("assigned_bytes", "assigned.nbytes"),
        ("assigned_sqnr_db", "assigned.sqnr_db"),
        ("assigned_kl_sum", lambda row: row.assigned.error if row.assigned.nats else None),
    )


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
        ("relative_error_bound", lambda found: None if found.point.nats else found.bound),
        ("kl_sum_bound", lambda found: found.bound if found.point.nats else None),
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
