"""Maps of a tensor under one or two schemes."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from qtui.engine.answers.pictures import MapCells
from qtui.engine.operations.session import Session, array
from qtui.engine.requests import PictureRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.errors import UsageError
from qtui_core.quant import MapKind, Pooling, Window, tensor_map
from qtui_core.quant.layout import matrix_shape

Choice = TypeVar("Choice", bound=StrEnum)


def draw_map(session: Session, task: Task[PictureRequest]) -> MapCells:
    """A map of the given `kind` under `schemes` (as many as the kind takes), of the whole tensor or
    of the `window`."""
    tensor, asked = session.tensor_of(task), task.asked
    kind = _choice(MapKind, asked.kind, "map")
    schemes = asked.schemes[: kind.schemes]
    share = 0.5 / max(1, len(schemes))
    plans = [
        session.plan_of(task, tensor, scheme, index * share, (index + 1) * share)
        for index, scheme in enumerate(schemes)
    ]
    found = tensor_map(
        tensor,
        kind,
        schemes,
        asked.rows,
        asked.columns,
        window=None if asked.window is None else Window(*asked.window),
        pooling=None if asked.pooling is None else _choice(Pooling, asked.pooling, "pooling"),
        plans=plans,
        job=task.job.part(0.5 if schemes else 0.0, 1.0),
    )
    rows, columns = matrix_shape(tensor.shape)
    return MapCells(
        rows=rows,
        columns=columns,
        pooling=found.pooling,
        cells=array(found.cells, "<f4"),
        peak_rows=array(found.rows, "<i8"),
        peak_columns=array(found.columns, "<i8"),
    )


def _choice(kind: type[Choice], text: str, noun: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"There is no {noun} {text!r}: {', '.join(kind)}.") from None


OPERATIONS: OperationTable = {"map": (draw_map, "view", PictureRequest)}
