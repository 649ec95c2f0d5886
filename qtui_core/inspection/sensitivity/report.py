"""The result of an assignment of schemes to tensors, as data."""

from __future__ import annotations

from qtui_core.dataclass import dataclass

#: The name of the option that leaves a tensor as it is stored.
AS_STORED = "as stored"


@dataclass(frozen=True)
class TensorChoice:
    """The scheme of one tensor; None leaves it as stored. `error` is its share of the total
    relative error."""

    name: str
    parameters: int
    scheme: str | None
    nbytes: int
    error: float

    PRINTED = (("tensor", "name"), "scheme", ("bytes", "nbytes"), ("relative_error", "error"))


@dataclass(frozen=True)
class FrontierPoint:
    """The least relative error with `nbytes` bytes for the model; `sqnr_db` is None if there is no
    error."""

    nbytes: int
    bits_per_parameter: float
    relative_error: float
    sqnr_db: float | None

    PRINTED = (("bytes", "nbytes"), "bits_per_parameter", "relative_error", "sqnr_db")


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
    )


@dataclass(frozen=True)
class Sensitivity:
    """The assignment for a budget, and the frontier around it.

    `bound` is a lower bound on the relative error of any assignment within the budget; it equals
    that of `point` if `exact`. If weighed by outputs, `tokens` are the fewest and the most tokens
    of a layer.
    """

    by: str
    budget: int
    point: FrontierPoint
    bound: float
    exact: bool
    choices: tuple[TensorChoice, ...]
    frontier: tuple[FrontierPoint, ...]
    uniform: tuple[UniformPoint, ...]
    unweighed: tuple[str, ...]
    tokens: tuple[int, int] | None
    conclusion: str

    PRINTED = (
        ("weighed_by", "by"),
        ("budget_bytes", "budget"),
        ("", "point"),
        ("relative_error_bound", "bound"),
        "exact",
        ("assignment", "choices"),
        "frontier",
        "uniform",
        ("weighed_by_weights_alone", "unweighed"),
        "tokens",
    )
