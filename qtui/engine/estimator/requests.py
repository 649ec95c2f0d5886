"""What the estimator is asked: a dataclass for each kind of question, as in engine/requests.py."""

from __future__ import annotations

from dataclasses import dataclass

from qtui_core.memory.plan.run_plan import RunPlan


@dataclass(frozen=True, kw_only=True)
class SubjectRequest:
    """About `model`, as the user typed it, or about `case`, one of the worked cases."""

    model: str | None = None
    case: str | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceAsked:
    """A GPU by its `name` in the catalogue, or by the bytes it has: `capacity`, or of one of this
    machine what is free on it. `label` is what answers call it."""

    name: str | None = None
    capacity: int | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlanRequest(SubjectRequest):
    """A plan as it was typed, on a GPU if one is meant."""

    plan: RunPlan
    device: DeviceAsked | None = None


@dataclass(frozen=True, kw_only=True)
class AroundRequest(PlanRequest):
    """The same, judged on the GPUs `live` of this machine too."""

    live: tuple[DeviceAsked, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FitMapRequest(PlanRequest):
    """The plan with each of `batches` and `sequences`, both rising."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OperationsRequest(PlanRequest):
    """`usual`: the user did not choose the sequence length, so a model with fewer learned positions
    may lower it."""

    usual: bool = False


@dataclass(frozen=True, kw_only=True)
class RatesRequest:
    """The rates of a GPU by its number, of the "cpu", or of the first device there is ("auto")."""

    on: str = "auto"
