"""Numbers of a tensor, and of its error under a scheme."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qtui.engine.answers.tensors import Explanation, TensorNumbers
from qtui.engine.element import element_under_scheme
from qtui.engine.operations.session import Session, array, watched
from qtui.engine.task import Result, Task
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme
from qtui_core.quant import explain as explain_reports
from qtui_core.quant import histogram as histogram_of
from qtui_core.quant.measure import ErrorScan
from qtui_core.quant.scan.reducer import Reducer
from qtui_core.quant.scan.statistics import StatisticsScan
from qtui_core.quant.segments.layout import matrix_shape

OUTLIER_COLUMNS_SENT = 256


def statistics(session: Session, task: Task) -> Result:
    """Statistics and outliers, two passes."""
    tensor = session.tensor_of(task)
    stats = session.statistics_of(task, tensor, 0.0, 0.5)
    found = session.outliers_of(task, tensor, 0.5, 1.0)
    first = replace(found, columns=found.columns[:OUTLIER_COLUMNS_SENT])
    return Result(TensorNumbers(stats, first))


def histogram(session: Session, task: Task) -> Result:
    tensor, bins = session.tensor_of(task), task.integer("bins")
    stats = session.statistics_of(task, tensor, 0.0, 0.5)
    if stats.min is None or stats.max is None:
        return Result({"edges": []}, {"counts": array([], "<i8")})
    found = histogram_of(tensor, bins, low=stats.min, high=stats.max, **watched(task, 0.5, 1.0))
    edges = [float(found.edges[0]), float(found.edges[-1])]
    return Result({"edges": edges}, {"counts": array(found.counts, "<i8")})


def measure(session: Session, task: Task) -> Result:
    return Result(session.errors_of(task, session.tensor_of(task), session.scheme_of(task)))


def explain(session: Session, task: Task) -> Result:
    """A sentence about the error of the first of `schemes`; the others are alternatives."""
    tensor = session.tensor_of(task)
    texts = task.params.get("schemes")
    if not isinstance(texts, list) or not texts:
        raise UsageError("An explanation needs a list of schemes.")
    schemes = [Scheme.parse(str(text)) for text in texts]
    asked: list[Reducer[Any]] = [*map(ErrorScan, schemes), StatisticsScan()]
    *reports, stats = session.find(task, tensor, asked, 0.0, 0.95)
    outliers = session.outliers_of(task, tensor, 0.95, 1.0)
    stored = session.stored_bits(task)
    sentence = explain_reports(reports, stats, outliers, stored_bits=stored)
    if task.params.get("inject") is not None:
        # What it advises is for the tensor as it was made, which is not the model's.
        sentence = f"With the outlier that was put in: {sentence}"
    return Result(Explanation(sentence))


def element(session: Session, task: Task) -> Result:
    tensor, scheme = session.tensor_of(task), session.scheme_of(task)
    row, column = task.integer("row"), task.integer("column")
    rows, columns = matrix_shape(tensor.shape)
    if not (0 <= row < rows and 0 <= column < columns):
        raise UsageError(f"The tensor is {rows} x {columns}; there is no ({row}, {column}).")
    plan = session.plan_of(task, tensor, scheme)
    return Result(element_under_scheme(tensor, plan, row, column))


OPERATIONS = {
    "statistics": (statistics, "view"),
    "histogram": (histogram, "view"),
    "measure": (measure, "view"),
    "explain": (explain, "view"),
    "element": (element, "quick"),
}
