"""A model whose weights are on the tape, and the inputs of a step."""

from __future__ import annotations

from collections.abc import Iterator

from qtui_core.dataclass import dataclass
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import OUTSIDE
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.weights import blocks_of
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Tensor


@dataclass(frozen=True)
class Batch:
    """The inputs of a step: token ids and labels `[batch, sequence]` int64, and the mask of padded
    sequences, if there are any. A pipeline stage without an embedding gets the hidden states that
    it `received` instead."""

    ids: Tensor
    labels: Tensor
    padding: Tensor | None
    received: Tensor | None = None


class Model:
    """A model whose weights are on the tape.

    Attributes:
        shape, plan: every option of the plan has a value.
        outside: weights outside of layers.
        layers: weights of each layer.
    """

    def __init__(self, shape: ModelShape, plan: RunPlan) -> None:
        self.shape = shape
        self.plan = plan
        outside, *blocks = blocks_of(shape, plan)
        self.outside = Weights(plan, outside.tensors)
        places = {prefix: block.tensors for block in blocks for prefix in block.prefixes}
        prefixes = [f"{shape.layer_prefix}.{i}" for i in range(len(shape.layers))]
        self.layers = tuple(Weights(plan, places[prefix]) for prefix in prefixes)

    def sweep(self, tape: Tape) -> Iterator[Weights]:
        """All weights, those outside of layers first; marks each layer on the tape."""
        tape.enter_layer(OUTSIDE)
        yield self.outside
        for index, weights in enumerate(self.layers):
            tape.enter_layer(index)
            yield weights
        tape.leave_layer()
