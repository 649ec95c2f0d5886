"""What a GPU holds between two steps: weights, adapters, buffers, optimizer states, workspaces.
No gradients and no activations."""

from __future__ import annotations

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, rounded
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.weights import WeightBlock, allocated_by_component, blocks_of
from qtui_core.memory.step.optimizer import shared_states, states_of
from qtui_core.memory.step.pipeline import stages_of
from qtui_core.memory.step.sharding import gradient_buckets, held_blocks, local_shape, updated


def resident_by_component(
    shape: ModelShape, plan: RunPlan, workspace_bytes: int = 0
) -> dict[Component, int]:
    """Bytes on the GPU that holds most, by what they are for, each tensor rounded as the allocator
    does. The buckets of DistributedDataParallel, which it keeps, count as gradients.

    Raises UsageError where no module is of the names that are to get adapters.
    """
    stages = stages_of(local_shape(shape, plan), plan)
    by_stage = [_by_component(blocks_of(stage, plan), plan) for stage in stages]
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
    """Bytes of the optimizer's states that the allocator of torch holds; those of paged
    optimizers that live in managed memory are not among them."""
    return _states(blocks, plan, paged=False)


def paged_bytes(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> int:
    """Bytes of states in managed memory: on the GPU only while a step touches them."""
    return _states(blocks, plan, paged=True)


def _states(blocks: tuple[WeightBlock, ...], plan: RunPlan, *, paged: bool) -> int:
    total = 0
    for block in blocks:
        for tensor in block.tensors:
            if tensor.requires_grad:
                held = sum(
                    state.bytes if paged else state.allocated
                    for state in states_of(updated(tensor, plan), plan)
                    if state.paged == paged
                )
                total += held * len(block.prefixes)
    if not paged:
        trained = (updated(t, plan) for block in blocks for t in block.tensors if t.requires_grad)
        total += sum(state.allocated for state in shared_states(trained, plan))
    return total
