"""What a GPU holds between two steps: weights, adapters, buffers, optimizer states and workspaces,
but no gradients and no activations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, rounded
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.weights import StoredTensor, WeightBlock, blocks_of
from qtui_core.memory.step.optimizer import shared_states, states_of
from qtui_core.memory.step.sharding import (
    cut_shape,
    gradient_buckets,
    is_sharded,
    shard_of,
    stages_of,
    updated,
)


def allocated_by_component(blocks: Iterable[WeightBlock]) -> dict[Component, int]:
    """Bytes by component, each tensor rounded as the allocator does."""
    totals: dict[Component, int] = {}
    for block in blocks:
        for tensor in block.tensors:
            held = rounded(tensor.bytes) * len(block.prefixes)
            totals[tensor.component] = totals.get(tensor.component, 0) + held
    return totals


def held_blocks(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> tuple[WeightBlock, ...]:
    """The tensors of a model as one GPU holds them between steps."""
    if plan.zero < 3:
        return blocks
    ways = plan.data_parallel
    return tuple(
        replace(
            block,
            tensors=tuple(shard_of(t, ways) if is_sharded(t, plan) else t for t in block.tensors),
        )
        for block in blocks
    )


def resident_by_component(
    shape: ModelShape, plan: RunPlan, workspace_bytes: int = 0
) -> dict[Component, int]:
    """Bytes on the GPU that holds most, by component, each tensor rounded as the allocator does.
    The buckets of DistributedDataParallel, which it keeps, count as gradients.

    Raises UsageError if no module has one of the names that are to get adapters.
    """
    by_stage = [
        _by_component(blocks_of(part, plan), plan)
        for part in stages_of(cut_shape(shape, plan), plan)
    ]
    totals = max(by_stage, key=lambda held: sum(held.values()))
    totals[Component.WORKSPACES] = workspace_bytes
    return totals


def _by_component(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> dict[Component, int]:
    totals = allocated_by_component(held_blocks(blocks, plan))
    totals[Component.OPTIMIZER] = optimizer_bytes(blocks, plan)
    totals[Component.GRADIENTS] = sum(map(rounded, gradient_buckets(blocks, plan)))
    return totals


def resident_bytes(shape: ModelShape, plan: RunPlan, workspace_bytes: int = 0) -> int:
    """The sum of `resident_by_component`."""
    return sum(resident_by_component(shape, plan, workspace_bytes).values())


def optimizer_bytes(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> int:
    """Bytes of the optimizer states in torch's allocator; those of paged optimizers, in managed
    memory, are not included."""
    each = [state for tensor in _held(blocks, plan) for state in states_of(tensor, plan)]
    shared = shared_states(_held(blocks, plan), plan)
    return sum(rounded(state.bytes) for state in (*each, *shared) if not state.paged)


def _held(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> Iterator[StoredTensor]:
    """The trained tensors of one GPU's optimizer."""
    for block in blocks:
        for tensor in block.tensors * len(block.prefixes):
            if tensor.requires_grad:
                yield updated(tensor, plan)
