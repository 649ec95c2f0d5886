"""The open model and cached results about its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from qtui.engine.captures import Captures
from qtui.engine.protocol import Array
from qtui.engine.requests import ModelRequest, TensorRequest
from qtui.engine.task import Task
from qtui.engine.tensors import OpenModels, OpenTensor
from qtui_core.evaluation.results import Candidate, EvaluationBegun, PartScored
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.quant import (
    ErrorReport,
    OutlierReport,
    PerModel,
    Scheme,
    TensorStatistics,
    find_outliers,
    statistics,
)
from qtui_core.quant.elements import Replaced, elements_of
from qtui_core.quant.measure import ErrorScan
from qtui_core.quant.plan import Plan, SchemeReducer, make_plan, scan
from qtui_core.quant.reading import Reducer
from qtui_core.quant.statistics import StatisticsScan

CACHED_RESULTS = 64
#: Cached results about single columns and thresholds: small, many, and often requested again.
CACHED_FINDINGS = 512

T = TypeVar("T")


class SessionTensor(Protocol):
    """The subject of operations: a stored tensor, a captured activation, or one of them with an
    injected outlier. `key` identifies it in the caches."""

    key: str
    shape: tuple[int, ...]

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]: ...


class Session:
    """The open model and cached results about it, as long as the process lives."""

    def __init__(self) -> None:
        self.models = OpenModels(self.forget)
        self.captured = Captures()
        self._outliers: dict[tuple[str, str], OutlierReport] = {}
        self._plans: dict[tuple[str, str, str], Plan] = {}
        self._model_extent: dict[str, tuple[float, float]] = {}
        self._findings: dict[tuple[Any, ...], Any] = {}
        self._scored: tuple[Any, dict[tuple[int, Candidate], PartScored]] = ((), {})

    def forget(self) -> None:
        """Clears the caches, because another model is open."""
        self.captured.forget()
        self._outliers.clear()
        self._plans.clear()
        self._model_extent.clear()
        self._findings.clear()
        self._scored = ((), {})

    def scored(self, begun: EvaluationBegun) -> dict[tuple[int, Candidate], PartScored]:
        """The parts that are known of candidates on these windows, by batch and candidate. Those of
        an evaluation on other windows are dropped."""
        others = replace(begun.settings, schemes=(), activations=())
        of = (begun.model, begun.text, begun.batches, begun.device, others)
        if self._scored[0] != of:
            self._scored = (of, {})
        return self._scored[1]

    def remembered(
        self,
        task: Task[TensorRequest],
        tensor: SessionTensor,
        what: tuple[Any, ...],
        find: Callable[[], T],
    ) -> T:
        """The result that `what` names for a tensor: from the cache, or computed by `find`."""
        key = (task.asked.model, tensor.key, *what)
        if key not in self._findings:
            _remember(self._findings, key, find(), CACHED_FINDINGS)
        found: T = self._findings[key]
        return found

    def tensor_of(self, task: Task[TensorRequest]) -> SessionTensor:
        """The subject of a task: its `tensor`, or the captured `source` of the module with that
        weight; with the outlier `inject`, if there is one."""
        subject, inject = self.original_of(task), task.asked.inject
        if inject is None:
            return subject
        return Replaced(subject, inject.row, [inject.column], inject.value)

    def original_of(self, task: Task[TensorRequest]) -> SessionTensor:
        """The same without the injected outlier."""
        asked = task.asked
        if asked.source == "weight":
            return self.models.tensor(asked.model, asked.tensor)
        return self.captured.subject(asked.model, asked.tensor, asked.source)

    def stored_bits(self, task: Task[TensorRequest]) -> float:
        """Bits per element of a task's subject without quantization: of a weight as in its file, of
        an activation as in the running model, at least 16."""
        info = self.models.source(task.asked.model).tensor(task.asked.tensor)
        bits = 8 * info.nbytes / max(1, info.elements)
        return bits if task.asked.source == "weight" else max(16.0, bits)

    def find(
        self,
        task: Task[TensorRequest],
        tensor: SessionTensor,
        reducers: Sequence[Reducer[Any]],
        start: float = 0.0,
        stop: float = 1.0,
    ) -> list[Any]:
        """The results of `reducers`: from the cache, and the others in one scan."""
        of_tensor = (task.asked.model, tensor.key)
        keys = [(*of_tensor, type(r).__name__, str(getattr(r, "scheme", ""))) for r in reducers]
        found = {key: self._findings[key] for key in keys if key in self._findings}
        missing = {key: r for key, r in zip(keys, reducers, strict=True) if key not in found}
        about = [r for r in missing.values() if isinstance(r, SchemeReducer)]
        extents = [self.extent_of_model(task, reducer.scheme, tensor) for reducer in about]
        plans = {r.scheme: self._plans.get((*of_tensor, str(r.scheme))) for r in about}
        if missing:
            scan(
                tensor,
                list(missing.values()),
                model_absmax=next(filter(None, extents), None),
                plans={scheme: plan for scheme, plan in plans.items() if plan is not None},
                job=task.job.part(start, stop),
            )
        for planned in about:
            _remember(self._plans, (*of_tensor, str(planned.scheme)), planned.plan)
        for key, reducer in missing.items():
            found[key] = reducer.result()
            _remember(self._findings, key, found[key], CACHED_FINDINGS)
        return [found[key] for key in keys]

    def statistics_of(
        self, task: Task[TensorRequest], tensor: SessionTensor, start: float, stop: float
    ) -> TensorStatistics:
        stats: TensorStatistics
        [stats] = self.find(task, tensor, [StatisticsScan()], start, stop)
        return stats

    def usual_of(self, task: Task[TensorRequest]) -> TensorStatistics:
        """The statistics whose mean and standard deviation define sigma: of a task's subject
        without an injected outlier."""
        return self.statistics_of(task, self.original_of(task), 0.0, 0.0)

    def outliers_of(
        self, task: Task[TensorRequest], tensor: SessionTensor, start: float, stop: float
    ) -> OutlierReport:
        key = (task.asked.model, tensor.key)
        if key not in self._outliers:
            stats = self.statistics_of(task, tensor, start, start)
            usual = self.usual_of(task)
            found = find_outliers(tensor, stats, usual=usual, job=task.job.part(start, stop))
            _remember(self._outliers, key, found)
        return self._outliers[key]

    def errors_of(
        self,
        task: Task[TensorRequest],
        tensor: SessionTensor,
        scheme: Scheme,
        start: float = 0.0,
        stop: float = 1.0,
    ) -> ErrorReport:
        report: ErrorReport
        [report] = self.find(task, tensor, [ErrorScan(scheme)], start, stop)
        return report

    def plan_of(
        self,
        task: Task[TensorRequest],
        tensor: SessionTensor,
        scheme: Scheme,
        start: float = 0.0,
        stop: float = 1.0,
    ) -> Plan:
        """The plan of a scheme for a tensor. Making it reads the whole tensor if scales depend on
        all elements."""
        key = (task.asked.model, tensor.key, str(scheme))
        if key not in self._plans:
            extent = self.extent_of_model(task, scheme, tensor)
            plan = make_plan(elements_of(tensor), scheme, extent, task.job.part(start, stop))
            _remember(self._plans, key, plan)
        return self._plans[key]

    def extent_of_model(
        self, task: Task[TensorRequest], scheme: Scheme, tensor: SessionTensor
    ) -> tuple[float, float] | None:
        """The smallest and largest value of the model, or of an activation on the calibration text,
        and of an outlier that is injected into the tensor; None if the scheme needs none."""
        asked = task.asked
        extent = self.extent_of_weights(task, scheme) if asked.source == "weight" else None
        if asked.source != "weight" and isinstance(scheme.granularity, PerModel):
            extent = self.captured.subject(asked.model, asked.tensor, asked.source).extent
        if extent and isinstance(tensor, Replaced) and math.isfinite(tensor.value):
            return min(extent[0], tensor.value), max(extent[1], tensor.value)
        return extent

    def extent_of_weights(
        self, task: Task[ModelRequest], scheme: Scheme
    ) -> tuple[float, float] | None:
        """The smallest and largest weight of the model, which is read in full once; None if the
        scheme does not need them."""
        if not isinstance(scheme.granularity, PerModel):
            return None
        model = task.asked.model
        if model not in self._model_extent:
            source = self.models.source(model)
            infos = [info for info in source.tensors.values() if is_quantizable(info)]
            low = high = 0.0
            for info, job in zip(infos, task.job.parts([i.elements for i in infos]), strict=True):
                found = statistics(OpenTensor(source, info), job)
                low, high = min(low, found.min or 0.0), max(high, found.max or 0.0)
            self._model_extent[model] = (low, high)
        return self._model_extent[model]


def array(values: npt.ArrayLike, dtype: str) -> Array:
    """An array as it is sent: little-endian bytes."""
    held = np.ascontiguousarray(values, dtype)
    return Array(dtype, held.shape, held.tobytes())


def finite_or_none(value: float) -> float | None:
    """The number; None for infinity and NaN, which answers do not contain."""
    return value if math.isfinite(value) else None


def _remember(cache: dict[Any, Any], key: Any, value: Any, most: int = CACHED_RESULTS) -> None:
    """Stores a result; the oldest is dropped if there are more than `most`."""
    cache[key] = value
    if len(cache) > most:
        del cache[next(iter(cache))]
