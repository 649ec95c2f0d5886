"""The requests of the estimator, one dataclass for each kind, as in engine/requests.py."""

from __future__ import annotations

from dataclasses import dataclass

from qtui_core.memory.plan.run_plan import RunPlan


@dataclass(frozen=True, kw_only=True)
class SubjectRequest:
    """A request about `model`, as the user typed it, or about `case`, the key of a worked case."""

    model: str | None = None
    case: str | None = None


@dataclass(frozen=True, kw_only=True)
class RequestedDevice:
    """A GPU by its `name` in the catalogue, or by its memory alone. `capacity` is the memory in
    bytes that a run can use; for a GPU of this machine, what is free. `label` is its name in
    answers."""

    name: str | None = None
    capacity: int | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlanRequest(SubjectRequest):
    """A plan as the user typed it, and the GPU, if one is chosen."""

    plan: RunPlan
    device: RequestedDevice | None = None


@dataclass(frozen=True, kw_only=True)
class AssessmentRequest(PlanRequest):
    """The same; whether the plan fits is also said for `live`, the GPUs of this machine."""

    live: tuple[RequestedDevice, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FitMapRequest(PlanRequest):
    """The plan with each pair of `batches` and `sequences`, both ascending."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RatesRequest:
    """The rates of the GPU with this number, of the "cpu", or of the first GPU, else the CPU
    ("auto")."""

    on: str = "auto"
