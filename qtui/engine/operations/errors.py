"""Statistics of a tensor and its error under schemes, and the errors of all tensors or layers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qtui.engine.answers.activations import StageProgress
from qtui.engine.answers.pictures import BinCounts
from qtui.engine.answers.tensors import AllRanked, Element, Explanation, Ranked, TensorNumbers
from qtui.engine.element import element_under_scheme
from qtui.engine.operations.session import Session, array
from qtui.engine.requests import (
    ElementRequest,
    HistogramRequest,
    PredictionsRequest,
    RankRequest,
    SchemeRequest,
    SchemesRequest,
    TensorRequest,
)
from qtui.engine.task import OperationTable, Task
from qtui.engine.tensors import OpenTensor
from qtui_core.answers import PredictionErrors
from qtui_core.errors import UsageError
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.inspection.sample import limit_of, sample_rows
from qtui_core.loading.text import text_to_choose_by
from qtui_core.models import row_elements, rows_of
from qtui_core.quant import ErrorReport
from qtui_core.quant import explain as explain_reports
from qtui_core.quant import histogram as histogram_of
from qtui_core.quant import measure as measure_elements
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.measure import ErrorScan
from qtui_core.quant.reading import Reducer
from qtui_core.quant.statistics import StatisticsScan

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
    job = task.job.part(0.5, 1.0)
    bins = task.asked.bins
    counts, edges = histogram_of(tensor, bins, low=stats.min, high=stats.max, job=job)
    return BinCounts((float(edges[0]), float(edges[-1])), array(counts, "<i8"))


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


def rank(session: Session, task: Task[RankRequest]) -> AllRanked:
    """The SQNR of every tensor to which a scheme would be applied, from a bounded sample of rows.
    Each is reported as progress."""
    source, scheme = session.models.source(task.asked.model), task.asked.scheme
    extent = session.extent_of_weights(task, scheme)
    infos = [info for info in source.tensors.values() if is_quantizable(info)]
    limit = limit_of(source.origin, infos, full=False)
    sampled = False
    for done, info in enumerate(infos):
        task.check()
        sample = sample_rows(rows_of(info), row_elements(info), limit)
        tensor = OpenTensor(source, info)
        parts = [tensor.rows(start, stop) for start, stop in sample.strips]
        report = measure_elements(np.concatenate(parts), scheme, model_absmax=extent)
        sampled |= not sample.is_whole
        nothing = report.nonfinite == report.count
        sqnr_db = math.nan if nothing else report.sqnr_db
        ranked = Ranked(info.name, sqnr_db)
        task.progress((done + 1) / len(infos), ranked)
    return AllRanked(sampled)


def prediction_errors(session: Session, task: Task[PredictionsRequest]) -> PredictionErrors:
    """What quantizing each tensor alone does to the predictions of the model."""
    asked = task.asked
    source = session.models.source(asked.model)
    text = text_to_choose_by(asked.file, demo=source.origin == "demo")
    task.progress(0.0, StageProgress("opening the model"))
    # Imported here, because torch takes seconds to import and few sessions need it.
    from qtui_core.evaluation.sensitivity import predictions

    stage = "one tensor at a time" if asked.by == "kl" else "taking gradients"
    task.progress(0.0, StageProgress(stage))
    about = source, asked.tensors, asked.schemes, text
    return predictions.prediction_errors(asked.by, *about, job=task.job)


OPERATIONS: OperationTable = {
    "statistics": (statistics, "view", TensorRequest),
    "histogram": (histogram, "view", HistogramRequest),
    "measure": (measure, "view", SchemeRequest),
    "explain": (explain, "view", SchemesRequest),
    "element": (element, "quick", ElementRequest),
    "rank": (rank, "background", RankRequest),
    "prediction_errors": (prediction_errors, "capture", PredictionsRequest),
}
