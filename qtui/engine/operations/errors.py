"""Statistics of a tensor, and its error under schemes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qtui.engine.answers.pictures import BinCounts
from qtui.engine.answers.tensors import Element, Explanation, TensorNumbers
from qtui.engine.element import element_under_scheme
from qtui.engine.operations.session import Session, array, watched
from qtui.engine.requests import (
    ElementRequest,
    HistogramRequest,
    SchemeRequest,
    SchemesRequest,
    TensorRequest,
)
from qtui.engine.task import OperationTable, Task
from qtui_core.errors import UsageError
from qtui_core.quant import ErrorReport
from qtui_core.quant import explain as explain_reports
from qtui_core.quant import histogram as histogram_of
from qtui_core.quant.measure import ErrorScan
from qtui_core.quant.scan.reducer import Reducer
from qtui_core.quant.scan.statistics import StatisticsScan
from qtui_core.quant.segments.layout import matrix_shape

OUTLIER_COLUMNS_SENT = 256


def statistics(session: Session, task: Task[TensorRequest]) -> TensorNumbers:
    """Statistics and outliers, in two passes."""
    tensor = session.tensor_of(task)
    stats = session.statistics_of(task, tensor, 0.0, 0.5)
    found = session.outliers_of(task, tensor, 0.5, 1.0)
    return TensorNumbers(stats, replace(found, columns=found.columns[:OUTLIER_COLUMNS_SENT]))


def histogram(session: Session, task: Task[HistogramRequest]) -> BinCounts:
    """How many elements are in each bin."""
    tensor = session.tensor_of(task)
    stats = session.statistics_of(task, tensor, 0.0, 0.5)
    if stats.min is None or stats.max is None:
        return BinCounts((), array([], "<i8"))
    watch = watched(task, 0.5, 1.0)
    found = histogram_of(tensor, task.asked.bins, low=stats.min, high=stats.max, **watch)
    edges = float(found.edges[0]), float(found.edges[-1])
    return BinCounts(edges, array(found.counts, "<i8"))


def measure(session: Session, task: Task[SchemeRequest]) -> ErrorReport:
    """The error of a scheme on a tensor."""
    return session.errors_of(task, session.tensor_of(task), task.asked.scheme)


def explain(session: Session, task: Task[SchemesRequest]) -> Explanation:
    """A sentence about the error of the first scheme; it may recommend one of the others."""
    tensor, schemes = session.tensor_of(task), task.asked.schemes
    if not schemes:
        raise UsageError("An explanation needs a list of schemes.")
    asked: list[Reducer[Any]] = [*map(ErrorScan, schemes), StatisticsScan()]
    *reports, stats = session.find(task, tensor, asked, 0.0, 0.95)
    outliers = session.outliers_of(task, tensor, 0.95, 1.0)
    stored = session.stored_bits(task)
    sentence = explain_reports(reports, stats, outliers, stored_bits=stored)
    if task.asked.inject is not None:
        # The advice is for the tensor with the injected outlier, not for that of the model.
        sentence = f"With the outlier that was put in: {sentence}"
    return Explanation(sentence)


def element(session: Session, task: Task[ElementRequest]) -> Element:
    """One element, and the levels of its group."""
    tensor, row, column = session.tensor_of(task), task.asked.row, task.asked.column
    rows, columns = matrix_shape(tensor.shape)
    if not (0 <= row < rows and 0 <= column < columns):
        raise UsageError(f"The tensor is {rows} x {columns}; there is no ({row}, {column}).")
    plan = session.plan_of(task, tensor, task.asked.scheme)
    return element_under_scheme(tensor, plan, row, column)


OPERATIONS: OperationTable = {
    "statistics": (statistics, "view", TensorRequest),
    "histogram": (histogram, "view", HistogramRequest),
    "measure": (measure, "view", SchemeRequest),
    "explain": (explain, "view", SchemesRequest),
    "element": (element, "quick", ElementRequest),
}
