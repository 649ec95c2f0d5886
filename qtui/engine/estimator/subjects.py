"""The models and worked cases whose memory is estimated.

A request names its subject by `model`, as the user typed it, or by `case`, the key of a worked
case. Each shape is read once.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

from qtui.engine.estimator.requests import PlanRequest, RequestedDevice, SubjectRequest
from qtui.profiles import calibrated
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.advice.cases import case_of
from qtui_core.memory.devices.device import Calibration, Device, device_of_memory, find_device
from qtui_core.memory.estimate import Estimate, estimate_as_run
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run, resolve_for, without_step
from qtui_core.memory.shape.description import ModelDescription, describe
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.models import open_model

#: How many estimates are kept for later requests about the same plan.
_KEPT = 4

#: A subject's name, the plan, and the device's name, capacity and what was measured of it.
Key = tuple[str, RunPlan, tuple[str, int, Calibration | None] | None]


@dataclass(frozen=True)
class MemorySubject:
    """A model and its shape, and what is known of its weights (`ModelFacts`)."""

    model: ModelDescription
    shape: ModelShape
    missing_weights: str = ""
    random_weights: bool = False


class Estimates:
    """Caches shapes and estimates for later requests."""

    def __init__(self) -> None:
        self._subjects: dict[tuple[str, str], MemorySubject] = {}
        self._found: dict[Key, Estimate] = {}

    def subject(self, asked: SubjectRequest) -> MemorySubject:
        """The subject of a request. Raises ModelError for a model that cannot be opened, UsageError
        for an invalid configuration."""
        case, model = asked.case or "", asked.model or ""
        key = ("case", case) if case else ("model", model)
        if key not in self._subjects:
            self._subjects[key] = _of_case(case) if case else _of_model(model)
        return self._subjects[key]

    def forget(self, model: str) -> None:
        """Forgets the shape of a model, whose files may have changed."""
        self._subjects.pop(("model", model), None)

    def full(self, question: Question) -> Estimate:
        """The full estimate, from the cache if it is there."""
        subject, plan, device = question.subject, question.plan, question.device
        place = (device.name, device.capacity_bytes, device.calibration) if device else None
        key = (subject.model.name, plan, place)
        found, shape = self._found.pop(key, None), question.shape
        if found is None or found.shape != shape:
            found = estimate_as_run(shape, plan_as_run(shape, plan, device), device)
        self._found[key] = found
        while len(self._found) > _KEPT:
            del self._found[next(iter(self._found))]
        return found


def _of_model(model: str) -> MemorySubject:
    with open_model(model) as source:
        found, missing = describe(source), source.missing_weights or ""
        return MemorySubject(found, found.read_shape(), missing, source.is_configuration)


def _of_case(key: str) -> MemorySubject:
    case = case_of(key)
    shape = shape_from_config(case.config)
    model = ModelDescription(case.title, case.source, case.config, shape.architecture, "")
    return MemorySubject(model, shape)


@dataclass(frozen=True)
class Question:
    """The subject, plan and device of a request. `asked` is the plan as the user typed it."""

    subject: MemorySubject
    asked: RunPlan
    device: Device | None

    @cached_property
    def shape(self) -> ModelShape:
        """The shape to estimate the plan with. Raises UsageError for an impossible plan."""
        own = self.subject.shape
        return self.subject.model.for_step(own, without_step(own, resolve_for(own, self.asked)))

    @cached_property
    def plan(self) -> RunPlan:
        """The plan with a value for every option. Raises UsageError for an impossible plan."""
        return resolve_for(self.shape, self.asked)


def question_of(estimates: Estimates, asked: PlanRequest) -> Question:
    """The subject, plan and device of a request."""
    subject = estimates.subject(asked)
    return Question(subject, asked.plan, device_of(asked.device))


def device_of(asked: RequestedDevice | None) -> Device | None:
    """The requested device: from the catalogue, or one with the given memory; None if none is
    requested."""
    if asked is None:
        return None
    capacity = asked.capacity
    try:
        found = calibrated(find_device(asked.name or ""))
    except UsageError:
        if capacity is None:
            raise
        found = device_of_memory(capacity)
    if capacity is not None:
        found = dataclasses.replace(found, allocatable=capacity)
    return dataclasses.replace(found, name=asked.label) if asked.label else found
