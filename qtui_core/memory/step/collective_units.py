"""What is gathered and reduced together where GPUs share a model."""

from __future__ import annotations

from collections.abc import Sequence

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import OUTSIDE
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.storage import StoredTensor
from qtui_core.memory.shape.weights import Block
from qtui_core.memory.step.optimizer import states_of
from qtui_core.memory.step.sharding import is_sharded, shard_of, updated


class Unit:
    """What is gathered and reduced together: a layer, or all that is outside of layers.

    Attributes:
        tensors: by name.
        wholes: bytes of each gathered parameter, padded to equal shards.
        reduced: bytes of the whole gradients, padded likewise.
        states: bytes of each state of the optimizer, by its name.
        gathered: ids of what holds the whole parameters now.
        pending: ids of whole gradients that wait for their reduction.
        gradients: id of the sharded gradients, None before the first reduction.
        awaited: how many gradients of the recording they stand for.
        buffer: id of a gather that is not yet copied out.
    """

    def __init__(self, tensors: Sequence[StoredTensor], plan: RunPlan) -> None:
        ways = plan.data_parallel
        self.tensors = {tensor.name: tensor for tensor in tensors}
        cut = [t for t in tensors if is_sharded(t, plan)] if plan.zero == 3 else []
        self.wholes = [shard_of(t, ways).bytes * ways for t in cut]
        trained = [t for t in tensors if t.requires_grad]
        self.reduced = sum(shard_of(t, ways).bytes * ways for t in trained)
        self.states = {
            state.name: state.bytes for t in trained for state in states_of(updated(t, plan), plan)
        }
        self.gathered: list[int] = []
        self.pending: list[int] = []
        self.gradients: int | None = None
        self.awaited = 0
        self.buffer: int | None = None


def units_of(shape: ModelShape, blocks: Sequence[Block], plan: RunPlan) -> dict[int, Unit]:
    """By index of the layer, those of an encoder first, as they are marked in a recording."""
    outside, *others = blocks
    places = {prefix: block.tensors for block in others for prefix in block.prefixes}
    prefixes = [f"{shape.encoder_prefix}.{i}" for i in range(len(shape.encoder))]
    prefixes += [f"{shape.layer_prefix}.{i}" for i in range(len(shape.layers))]
    units = {index: Unit(places[prefix], plan) for index, prefix in enumerate(prefixes)}
    units[OUTSIDE] = Unit(outside.tensors, plan)
    return units
