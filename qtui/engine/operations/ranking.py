"""The error of one scheme on every tensor of a model."""

from __future__ import annotations

import numpy as np

from qtui.engine.answers.tensors import AllRanked, Ranked
from qtui.engine.operations.session import Session
from qtui.engine.requests import RankRequest
from qtui.engine.task import OperationTable, Task
from qtui.engine.tensors import OpenTensor
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.inspection.sample import LOCAL_LIMIT, REMOTE_LIMIT, sample_rows
from qtui_core.models import row_elements, rows_of
from qtui_core.quant import measure


def rank(session: Session, task: Task[RankRequest]) -> AllRanked:
    """The SQNR of every tensor to which a scheme would be applied, from a bounded sample of rows.
    Each is reported as progress."""
    source, scheme = session.models.source(task.asked.model), task.asked.scheme
    extent = session.extent_of_weights(task, scheme)
    limit = REMOTE_LIMIT if source.origin == "hub" else LOCAL_LIMIT
    infos = [info for info in source.tensors.values() if is_quantizable(info)]
    sampled = False
    for done, info in enumerate(infos):
        task.check()
        sample = sample_rows(rows_of(info), row_elements(info), limit)
        tensor = OpenTensor(source, info)
        parts = [tensor.rows(start, stop) for start, stop in sample.strips]
        report = measure(np.concatenate(parts), scheme, model_absmax=extent)
        sampled |= not sample.is_whole
        ranked = Ranked(info.name, report.sqnr_db, report.overflowed)
        task.progress((done + 1) / len(infos), ranked)
    return AllRanked(sampled)


OPERATIONS: OperationTable = {"rank": (rank, "background", RankRequest)}
