"""Opens a model, and lists the devices of this machine."""

from __future__ import annotations

from qtui.engine.answers.tensors import Devices, ModelIndex, TensorEntry
from qtui.engine.operations.session import Session
from qtui.engine.requests import ModelRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.errors import QtuiError
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import parameter_count
from qtui_core.models import ModelSource
from qtui_core.telemetry.readings import read_devices


def open_model(session: Session, task: Task[ModelRequest]) -> ModelIndex:
    return _index(session.models.open(task.asked.model, task.job))


def model_index(session: Session, task: Task[ModelRequest]) -> ModelIndex:
    """The index of a model. It is opened only if it is not open, so that cached results stay."""
    return _index(session.models.source(task.asked.model))


def devices(session: Session, task: Task[object]) -> Devices:
    return Devices(read_devices())


def _index(source: ModelSource) -> ModelIndex:
    quantization = source.quantization
    return ModelIndex(
        id=source.id,
        origin=source.origin,
        architecture=source.architecture,
        parameters=_parameters(source),
        nbytes=source.nbytes,
        note=source.missing_weights or (quantization.detail if quantization else ""),
        tensors=tuple(
            TensorEntry(
                info.name,
                info.dtype,
                info.shape,
                info.elements,
                info.nbytes,
                info.readable,
                is_quantizable(info),
                info.matrix[0],
            )
            for info in source.tensors.values()
        ),
    )


def _parameters(source: ModelSource) -> int | None:
    """The number of stored parameters; without weights, what the config says; None if its family is
    not known."""
    if source.tensors:
        return source.parameters
    try:
        return parameter_count(shape_from_config(source.config))
    except QtuiError:
        return None


OPERATIONS: OperationTable = {
    "open_model": (open_model, "view", ModelRequest),
    "model_index": (model_index, "view", ModelRequest),
    "devices": (devices, "quick", None),
}
