"""Pictures of a tensor under one scheme or two."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from qtui.engine.operations.session import Session, array, watched
from qtui.engine.task import Result, Task
from qtui_core.errors import UsageError
from qtui_core.quant import MapKind, Pooling, Scheme, Window, tensor_map
from qtui_core.quant.segments.layout import matrix_shape

Choice = TypeVar("Choice", bound=StrEnum)


def draw_map(session: Session, task: Task) -> Result:
    """A map of a `kind` under `schemes` (as many as the kind takes), of the whole tensor or of
    the `window` [first row, end, first column, end]."""
    tensor = session.tensor_of(task)
    kind = _choice(MapKind, task.params.get("kind", MapKind.ERROR), "map")
    pooling = task.params.get("pooling")
    texts = task.params.get("schemes")
    if not isinstance(texts, list):
        raise UsageError("A map needs a list of schemes.")
    schemes = [Scheme.parse(str(text)) for text in texts[: kind.schemes]]
    share = 0.5 / max(1, len(schemes))
    plans = [
        session.plan_of(task, tensor, scheme, index * share, (index + 1) * share)
        for index, scheme in enumerate(schemes)
    ]
    found = tensor_map(
        tensor,
        kind,
        schemes,
        task.integer("rows"),
        task.integer("columns"),
        window=_window(task.params.get("window")),
        pooling=None if pooling is None else _choice(Pooling, pooling, "pooling"),
        plans=plans,
        **watched(task, 0.5 if schemes else 0.0, 1.0),
    )
    rows, columns = matrix_shape(tensor.shape)
    return Result(
        {"rows": rows, "columns": columns, "pooling": found.pooling},
        {
            "cells": array(found.cells, "<f4"),
            "peak_rows": array(found.rows, "<i8"),
            "peak_columns": array(found.columns, "<i8"),
        },
    )


def _choice(kind: type[Choice], text: object, noun: str) -> Choice:
    try:
        return kind(str(text))
    except ValueError:
        raise UsageError(f"There is no {noun} {text!r}: {', '.join(kind)}.") from None


def _window(given: object) -> Window | None:
    if given is None:
        return None
    if isinstance(given, list) and len(given) == 4 and all(type(end) is int for end in given):
        return Window(*given)
    raise UsageError("A window is four whole numbers: first row, end, first column, end.")


OPERATIONS = {"map": (draw_map, "view")}
