"""What each scheme for a weight does to the output of its layer, for all layers of a model."""

from __future__ import annotations

from qtui.engine.operations.session import Session, watched
from qtui.engine.task import Result, Task
from qtui_core.activations.text import read_text
from qtui_core.errors import UsageError
from qtui_core.inspection.layer_errors import layer_errors as errors_of
from qtui_core.quant import Scheme

#: The part of the work that is the forward pass.
_FORWARD = 0.5


def layer_errors(session: Session, task: Task) -> Result:
    """The relative error of the output of every linear layer of `model` whose weight is among
    `tensors`, under each of `schemes`, with the inputs it has while the model reads the text of
    `file`: [tensor, tokens, errors]. `full` reads every weight, else a sample."""
    tensors, schemes = task.params.get("tensors"), task.params.get("schemes")
    if not isinstance(tensors, list) or not isinstance(schemes, list):
        raise UsageError("The errors of layers need a list of weights and a list of schemes.")
    parsed = [Scheme.parse(str(scheme)) for scheme in schemes]
    text = read_text(task.text("file"))
    source = session.models.source(task.text("model"))
    task.progress(0.0, {"stage": "running the model"})
    # Imported here, because the import of torch takes seconds that few sessions need.
    from qtui_core.activations.layer_inputs import layer_inputs

    inputs = layer_inputs(source, tensors, text, **watched(task, 0.0, _FORWARD))
    task.progress(_FORWARD, {"stage": "weighing"})
    full = bool(task.params.get("full"))
    found = errors_of(source, inputs, parsed, full=full, **watched(task, _FORWARD, 1.0))
    return Result({"layers": [[name, e.tokens, e.relative_mse] for name, e in found.items()]})


OPERATIONS = {"layer_errors": (layer_errors, "capture")}
