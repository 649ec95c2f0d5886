"""What flows into every layer, in one number a channel."""

from __future__ import annotations

import numpy as np

from qtui.engine.operations.session import Session, array, watched
from qtui.engine.task import Result, Task
from qtui_core.activations.text import read_text
from qtui_core.inspection.inspect import is_quantizable


def input_moments(session: Session, task: Task) -> Result:
    """E[x_j²] of the inputs of the linear layers of `model` over the text of `file`: the
    layers as [tensor, inputs, transposed], their moments one after another."""
    text = read_text(task.text("file"))
    source = session.models.source(task.text("model"))
    task.progress(0.0, {"stage": "loading the model"})
    # Imported here, because the import of torch takes seconds that few sessions need.
    from qtui_core.activations.moments import input_moments as moments_of

    wanted = [info.name for info in source.tensors.values() if is_quantizable(info)]
    found = moments_of(source, wanted, text, **watched(task))
    parts = [layer.second_moment for layer in found.layers]
    return Result(
        {
            "layers": [
                [one.tensor, one.second_moment.size, one.transposed] for one in found.layers
            ],
            "tokens": found.tokens,
            "note": found.note,
            "text": text.origin,
        },
        {"moments": array(np.concatenate(parts) if parts else np.empty(0), "<f8")},
    )


OPERATIONS = {"input_moments": (input_moments, "capture")}
