"""The result of an assignment of schemes to tensors, as data."""

from __future__ import annotations

from qtui_core.dataclass import dataclass

#: What an option is called that leaves the tensor as it is.
AS_STORED = "as stored"


@dataclass(frozen=True)
class TensorChoice:
    """What one tensor gets: a scheme, or None to stay as it is stored. `error` is its share of
    the total relative error."""

    name: str
    parameters: int
    scheme: str | None
    nbytes: int
    error: float

    PRINTED = (("tensor", "name"), "scheme", ("bytes", "nbytes"), ("relative_error", "error"))


@dataclass(frozen=True)
class FrontierPoint:
    """The least relative error in so many bytes of the model; `sqnr_db` is None without error."""

    nbytes: int
    bits_per_parameter: float
    relative_error: float
    sqnr_db: float | None

    PRINTED = (("bytes", "nbytes"), "bits_per_parameter", "relative_error", "sqnr_db")


@dataclass(frozen=True)
class UniformPoint:
    """One scheme for every tensor, and what an assignment of the same bytes reaches."""

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

    `bound` is a relative error that no assignment within the budget can be below; equal to that
    of `point` where `exact`. `tokens`, by outputs: the fewest and the most of a layer.
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
