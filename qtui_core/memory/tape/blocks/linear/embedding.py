"""An embedding table, with or without an adapter (peft 0.21, Embedding in tuners/lora/layer.py)."""

from __future__ import annotations

from collections.abc import Callable

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Embedding
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.embedding import embedding
from qtui_core.memory.tape.operations.linear import linear
from qtui_core.memory.tape.operations.pointwise import add, mul, scale
from qtui_core.memory.tape.operations.views import turned
from qtui_core.memory.tape.tape import Tape, Tensor

FACTOR = Label("embed_scale")


def look_up(
    tape: Tape,
    weights: Weights,
    spec: Embedding,
    indices: Tensor,
    base: Callable[[], Tensor] | None = None,
    *,
    scales: bool = False,
) -> Tensor:
    """Rows of `spec` by `indices`. `base` runs what is under the adapter, if that is more than the
    look-up; `scales`: it multiplies the rows by a constant of the model's dtype.

    The adapter's part is looked up in the transpose of A and multiplied by that of B, in the
    adapter's dtype.
    """
    before, tape.path = tape.path, spec.name
    if base is None:
        result = embedding(tape, weights[f"{spec.name}.weight"], indices, spec.columns)
    else:
        result = base()
    pair = weights.adapter(spec)
    if pair is not None:
        given, rank = result.dtype, weights.plan.lora_rank
        down, up = turned(tape, pair[0], copied=True), turned(tape, pair[1])
        after_down = embedding(tape, down, indices, rank)
        output = scale(tape, linear(tape, after_down, up, None, rank, spec.columns))
        if scales and output.dtype != weights.plan.dtype:
            output = mul(tape, output, tape.new(1, output.dtype, FACTOR))
        elif scales:
            output = scale(tape, output)
        result = add(tape, result, output)
        result = tape.to(result, given)
    tape.path = before
    return result
