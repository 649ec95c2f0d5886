"""Opening a model, and the devices of this machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from qtui.engine.operations.session import Session
from qtui.engine.task import Result, Task
from qtui_core.errors import QtuiError
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.models import ModelSource
from qtui_core.telemetry.device import read_devices


def open_model(session: Session, task: Task) -> Result:
    def opened(done: int, total: int) -> None:
        task.check()
        task.progress(done / max(1, total))

    source = session.models.open(task.text("model"), opened)
    session.forget()
    return Result(_model_data(source))


def model_index(session: Session, task: Task) -> Result:
    """The index of the model that is open, which is opened only if it is not: what was found
    out about it stays."""
    return Result(_model_data(session.models.source(task.text("model"))))


def devices(session: Session, task: Task) -> Result:
    return Result({"devices": [dataclasses.asdict(device) for device in read_devices()]})


def _model_data(source: ModelSource) -> dict[str, Any]:
    """The index of a model. A tensor is a row in the order of the list's `TensorEntry`, and
    not an object: there may be 100,000."""
    quantization = source.quantization
    return {
        "id": source.id,
        "origin": source.origin,
        "architecture": source.architecture,
        "parameters": _parameters(source),
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
                info.matrix[0],
            ]
            for info in source.tensors.values()
        ],
    }


def _parameters(source: ModelSource) -> int | None:
    """Those of the tensors that are stored; without any, what the config alone says, and None
    where it is of a family that is not known."""
    if source.tensors:
        return source.parameters
    try:
        return ModelShape.from_config(source.config).parameters
    except QtuiError:
        return None


OPERATIONS = {
    "open_model": (open_model, "view"),
    "model_index": (model_index, "view"),
    "devices": (devices, "quick"),
}
