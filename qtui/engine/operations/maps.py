"""Pictures of a tensor under a scheme."""

from __future__ import annotations

from qtui.engine.operations.session import Session, array, watched
from qtui.engine.task import Result, Task
from qtui_core.quant import error_map as map_of
from qtui_core.quant.layout import matrix_shape


def error_map(session: Session, task: Task) -> Result:
    tensor, scheme = session.tensor_of(task), session.scheme_of(task)
    found = map_of(
        tensor,
        scheme,
        task.integer("rows"),
        task.integer("columns"),
        model_absmax=session.extent_of_model(task, scheme),
        **watched(task),
    )
    rows, columns = matrix_shape(tensor.shape)
    return Result(
        {"rows": rows, "columns": columns},
        {
            "cells": array(found.cells, "<f4"),
            "peak_rows": array(found.rows, "<i8"),
            "peak_columns": array(found.columns, "<i8"),
        },
    )


OPERATIONS = {"error_map": (error_map, "view")}
