"""What the engine can be asked for. Each operation reads its parameters from a Task and
answers with JSON and pictures; what is computed is computed by qtui_core."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui.engine.element import element_under_scheme, group_levels
from qtui.engine.protocol import Array
from qtui.engine.schemes import describe_scheme, step_scheme
from qtui.engine.task import Operation, Result, Task
from qtui.engine.tensors import OpenModels, StoredTensor
from qtui_core.errors import UsageError
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.inspection.sample import LOCAL_LIMIT, REMOTE_LIMIT, sample_rows
from qtui_core.models import ModelSource, row_elements, rows_of
from qtui_core.quant import (
    ErrorReport,
    OutlierReport,
    PerModel,
    Scheme,
    TensorStatistics,
    error_map,
    explain,
    find_outliers,
    histogram,
    measure,
    statistics,
)
from qtui_core.quant.elements import elements_of
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.process import Plan, make_plan
from qtui_core.telemetry.device import read_devices

OUTLIER_SIGMA = 6.0
OUTLIER_COLUMNS_SENT = 256
CACHED_RESULTS = 64


class Session:
    """The open model and what was found out about it, for as long as the child lives."""

    def __init__(self) -> None:
        self.models = OpenModels()
        self._statistics: dict[tuple[str, str], TensorStatistics] = {}
        self._outliers: dict[tuple[str, str], OutlierReport] = {}
        self._errors: dict[tuple[str, str, str], ErrorReport] = {}
        self._plans: dict[tuple[str, str, str], Plan] = {}
        self._model_extent: dict[str, tuple[float, float]] = {}

    # Models

    def open_model(self, task: Task) -> Result:
        def opened(done: int, total: int) -> None:
            task.check()
            task.progress(done / max(1, total))

        source = self.models.open(task.text("model"), opened)
        self._statistics.clear()
        self._outliers.clear()
        self._errors.clear()
        self._plans.clear()
        self._model_extent.clear()
        return Result(_model_data(source))

    def devices(self, task: Task) -> Result:
        return Result({"devices": [dataclasses.asdict(device) for device in read_devices()]})

    # Schemes

    def scheme(self, task: Task) -> Result:
        return Result(describe_scheme(Scheme.parse(task.text("text"))))

    def step_scheme(self, task: Task) -> Result:
        scheme = Scheme.parse(task.text("text"))
        return Result(
            describe_scheme(step_scheme(scheme, task.text("part"), task.integer("direction")))
        )

    # Tensors

    def statistics(self, task: Task) -> Result:
        """Statistics and outliers, two passes."""
        tensor = self._tensor(task)
        stats = self._statistics_of(task, tensor, 0.0, 0.5)
        found = self._outliers_of(task, tensor, 0.5, 1.0)
        columns = [[c.column, c.count] for c in found.columns[:OUTLIER_COLUMNS_SENT]]
        return Result(
            {
                **_plain(stats),
                "outliers": found.count,
                "outlier_share": found.share,
                "outlier_columns": columns,
            }
        )

    def histogram(self, task: Task) -> Result:
        tensor, bins = self._tensor(task), task.integer("bins")
        stats = self._statistics_of(task, tensor, 0.0, 0.5)
        if stats.min is None or stats.max is None:
            return Result({"edges": []}, {"counts": _array([], "<i8")})
        found = histogram(tensor, bins, low=stats.min, high=stats.max, **watched(task, 0.5, 1.0))
        edges = [float(found.edges[0]), float(found.edges[-1])]
        return Result({"edges": edges}, {"counts": _array(found.counts, "<i8")})

    def measure(self, task: Task) -> Result:
        report = self._errors_of(task, self._tensor(task), self._scheme(task))
        return Result(_plain(report, leave_out=("scheme",)))

    def explain(self, task: Task) -> Result:
        """A sentence about the error of the first of `schemes`; the others are alternatives."""
        tensor = self._tensor(task)
        texts = task.params.get("schemes")
        if not isinstance(texts, list) or not texts:
            raise UsageError("An explanation needs a list of schemes.")
        schemes = [Scheme.parse(str(text)) for text in texts]
        reports = [self._errors_of(task, tensor, scheme) for scheme in schemes]
        stats = self._statistics_of(task, tensor, 0.9, 0.95)
        outliers = self._outliers_of(task, tensor, 0.95, 1.0)
        return Result({"sentence": explain(reports, stats, outliers)})

    def error_map(self, task: Task) -> Result:
        tensor, scheme = self._tensor(task), self._scheme(task)
        extent = self._extent_of_model(task, scheme)
        found = error_map(
            tensor,
            scheme,
            task.integer("rows"),
            task.integer("columns"),
            model_absmax=extent,
            **watched(task),
        )
        rows, columns = matrix_shape(tensor.shape)
        return Result(
            {"rows": rows, "columns": columns},
            {
                "cells": _array(found.cells, "<f4"),
                "peak_rows": _array(found.rows, "<i8"),
                "peak_columns": _array(found.columns, "<i8"),
            },
        )

    def element(self, task: Task) -> Result:
        tensor, scheme = self._tensor(task), self._scheme(task)
        row, column = task.integer("row"), task.integer("column")
        rows, columns = matrix_shape(tensor.shape)
        if not (0 <= row < rows and 0 <= column < columns):
            raise UsageError(f"The tensor is {rows} x {columns}; there is no ({row}, {column}).")
        plan = self._plan_of(task, tensor, scheme)
        found = element_under_scheme(tensor, plan, row, column)
        data = dataclasses.asdict(found)
        return Result(
            {**data, "row": row, "column": column, "error": found.quantized - found.value},
            {"levels": _array(group_levels(plan, found), "<f8")},
        )

    def rank(self, task: Task) -> Result:
        """SQNR of every tensor a scheme would be applied to, from a bounded sample of rows,
        told one by one as progress."""
        source = self.models.source(task.text("model"))
        scheme = self._scheme(task)
        extent = self._extent_of_model(task, scheme)
        limit = REMOTE_LIMIT if source.origin == "hub" else LOCAL_LIMIT
        infos = [info for info in source.tensors.values() if is_quantizable(info)]
        sampled = False
        for done, info in enumerate(infos):
            task.check()
            sample = sample_rows(rows_of(info), row_elements(info), limit)
            tensor = StoredTensor(source, info)
            parts = [tensor.rows(start, stop) for start, stop in sample.strips]
            report = measure(np.concatenate(parts), scheme, model_absmax=extent)
            sampled |= not sample.is_whole
            task.progress((done + 1) / len(infos), {"name": info.name, "sqnr_db": report.sqnr_db})
        return Result({"sampled": sampled})

    # What the operations share

    def _tensor(self, task: Task) -> StoredTensor:
        return self.models.tensor(task.text("model"), task.text("tensor"))

    def _scheme(self, task: Task) -> Scheme:
        return Scheme.parse(task.text("scheme"))

    def _statistics_of(
        self, task: Task, tensor: StoredTensor, start: float, stop: float
    ) -> TensorStatistics:
        key = (task.text("model"), tensor.info.name)
        if key not in self._statistics:
            found = statistics(tensor, **watched(task, start, stop))
            _remember(self._statistics, key, found)
        return self._statistics[key]

    def _outliers_of(
        self, task: Task, tensor: StoredTensor, start: float, stop: float
    ) -> OutlierReport:
        key = (task.text("model"), tensor.info.name)
        if key not in self._outliers:
            stats = self._statistics_of(task, tensor, start, start)
            found = find_outliers(tensor, stats, OUTLIER_SIGMA, **watched(task, start, stop))
            _remember(self._outliers, key, found)
        return self._outliers[key]

    def _errors_of(self, task: Task, tensor: StoredTensor, scheme: Scheme) -> ErrorReport:
        key = (task.text("model"), tensor.info.name, str(scheme))
        if key not in self._errors:
            extent = self._extent_of_model(task, scheme)
            found = measure(tensor, scheme, model_absmax=extent, **watched(task))
            _remember(self._errors, key, found)
        return self._errors[key]

    def _plan_of(self, task: Task, tensor: StoredTensor, scheme: Scheme) -> Plan:
        key = (task.text("model"), tensor.info.name, str(scheme))
        if key not in self._plans:
            extent = self._extent_of_model(task, scheme)
            plan = make_plan(elements_of(tensor), scheme, extent, cancelled=task.is_cancelled)
            _remember(self._plans, key, plan)
        return self._plans[key]

    def _extent_of_model(self, task: Task, scheme: Scheme) -> tuple[float, float] | None:
        """The smallest and largest value of the model, which is read in full once; None where
        the scheme does not need them."""
        if not isinstance(scheme.granularity, PerModel):
            return None
        text = task.text("model")
        if text not in self._model_extent:
            source = self.models.source(text)
            infos = [info for info in source.tensors.values() if is_quantizable(info)]
            total = sum(info.elements for info in infos) or 1
            done, low, high = 0, 0.0, 0.0
            for info in infos:
                watch = watched(task, done / total, (done + info.elements) / total)
                found = statistics(StoredTensor(source, info), **watch)
                low, high = min(low, found.min or 0.0), max(high, found.max or 0.0)
                done += info.elements
            self._model_extent[text] = (low, high)
        return self._model_extent[text]


def build_operations() -> dict[str, Operation]:
    """The operations by name, bound to one session. `view` is what takes seconds, `quick`
    what the cursor waits for, `background` what may take minutes."""
    session = Session()

    def view(run: Callable[[Task], Result]) -> Operation:
        return Operation(run, "view")

    def quick(run: Callable[[Task], Result]) -> Operation:
        return Operation(run, "quick")

    return {
        "open_model": view(session.open_model),
        "statistics": view(session.statistics),
        "histogram": view(session.histogram),
        "measure": view(session.measure),
        "explain": view(session.explain),
        "error_map": view(session.error_map),
        "element": quick(session.element),
        "scheme": quick(session.scheme),
        "step_scheme": quick(session.step_scheme),
        "devices": quick(session.devices),
        "rank": Operation(session.rank, "background"),
    }


def watched(task: Task, start: float = 0.0, stop: float = 1.0) -> dict[str, Any]:
    """What makes a function of qtui_core stoppable and heard: its progress from 0 to 1 is
    that of the task from `start` to `stop`."""
    return {
        "cancelled": task.is_cancelled,
        "progress": lambda fraction: task.progress(start + (stop - start) * fraction),
    }


def _model_data(source: ModelSource) -> dict[str, Any]:
    """The index of a model. A tensor is a row in the order of the list's `TensorEntry`, and
    not an object: there may be 100,000."""
    quantization = source.quantization
    return {
        "id": source.id,
        "origin": source.origin,
        "architecture": source.architecture,
        "parameters": source.parameters,
        "nbytes": source.nbytes,
        "note": source.missing_weights or (quantization.detail if quantization else ""),
        "tensors": [
            [
                info.name,
                info.dtype,
                info.shape,
                info.elements,
                info.nbytes,
                info.readable,
                is_quantizable(info),
                matrix_shape(info.shape)[0],
            ]
            for info in source.tensors.values()
        ],
    }


def _plain(record: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass that JSON has words for."""
    return {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name not in leave_out
    }


def _array(values: npt.ArrayLike, dtype: str) -> Array:
    array = np.ascontiguousarray(values, dtype)
    return Array(dtype, array.shape, array.tobytes())


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a result; the oldest goes when there are too many."""
    cache[key] = value
    if len(cache) > CACHED_RESULTS:
        del cache[next(iter(cache))]
