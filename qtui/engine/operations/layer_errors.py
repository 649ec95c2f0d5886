"""The output error of every linear layer under each scheme for its weight."""

from __future__ import annotations

from qtui.engine.answers.activations import LayerErrorTable, StageProgress
from qtui.engine.operations.session import Session, watched
from qtui.engine.requests import LayersRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.activations.text import read_text
from qtui_core.inspection.layer_errors import layer_errors as errors_of

#: The share of the progress that the forward pass takes.
_FORWARD = 0.5


def layer_errors(session: Session, task: Task[LayersRequest]) -> LayerErrorTable:
    """The relative error of the output of every linear layer whose weight is in `tensors`, under
    each of `schemes`, on the inputs that the layer gets while the model reads the text."""
    asked = task.asked
    text = read_text(asked.file)
    source = session.models.source(asked.model)
    task.progress(0.0, StageProgress("running the model"))
    # Imported here, because torch takes seconds to import and few sessions need it.
    from qtui_core.activations.layer_inputs import layer_inputs

    inputs = layer_inputs(source, list(asked.tensors), text, **watched(task, 0.0, _FORWARD))
    task.progress(_FORWARD, StageProgress("weighing"))
    watch = watched(task, _FORWARD, 1.0)
    return LayerErrorTable(errors_of(source, inputs, asked.schemes, full=asked.full, **watch))


OPERATIONS: OperationTable = {"layer_errors": (layer_errors, "capture", LayersRequest)}
