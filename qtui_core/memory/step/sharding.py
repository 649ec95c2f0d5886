"""The shard of each tensor on one of several GPUs that hold the same part of a model."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.storage import StoredTensor
from qtui_core.memory.shape.weights import WeightBlock
from qtui_core.memory.step.optimizer import states_of

#: DistributedDataParallel: the bytes after which a bucket of gradients is closed: the first bucket
#: and the others (torch/nn/parallel/distributed.py, bucket_cap_mb;
#: dist._DEFAULT_FIRST_BUCKET_BYTES).
_FIRST_BUCKET: Final = 1 << 20
_BUCKET: Final = 25 << 20


def is_sharded(tensor: StoredTensor, plan: RunPlan) -> bool:
    """Whether ZeRO-3 shards a tensor: parameters in a floating-point type, and 4-bit weights that
    are packed into one (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model, leaves out other
    Params4bit). Their constants and buffers are not parameters and stay whole on every GPU."""
    if tensor.component not in (Component.WEIGHTS, Component.ADAPTERS):
        return False
    packed = tensor.dtype == "uint8" and plan.four_bits
    return tensor.dtype in FLOATING or (packed and plan.quant_storage in FLOATING)


def shard_of(tensor: StoredTensor, ways: int) -> StoredTensor:
    """The part of a tensor on one of `ways` GPUs: some of its rows; the last parts are padded to
    the length of the first (torch fully_shard, FSDPParam._init_sharded_param)."""
    rows, *rest = tensor.shape or (1,)
    return tensor._replace(shape=(-(-rows // ways), *rest))


def updated(tensor: StoredTensor, plan: RunPlan) -> StoredTensor:
    """The part of a trained tensor that one GPU's optimizer updates."""
    return shard_of(tensor, plan.data_parallel) if plan.zero else tensor


def paged_bytes(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> int:
    """Bytes of optimizer states in managed memory, which are on the GPU only while a step uses
    them."""
    return sum(
        state.bytes * len(block.prefixes)
        for block in blocks
        for tensor in block.tensors
        if tensor.requires_grad
        for state in states_of(updated(tensor, plan), plan)
        if state.paged
    )


def gradient_buckets(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> tuple[int, ...]:
    """Bytes of the buckets in which DistributedDataParallel reduces gradients, which it keeps
    beside them for the whole run (reducer.cpp, compute_bucket_assignment_by_size). Empty if
    gradients are sharded or there is one GPU."""
    if plan.data_parallel == 1 or plan.zero > 1 or not plan.trains:
        return ()
    closed: list[int] = []
    open_buckets: dict[str, int] = {}
    for block in reversed(blocks):
        trained = [t for t in reversed(block.tensors) if t.requires_grad]
        for tensor in trained * len(block.prefixes):
            filled = open_buckets.pop(tensor.dtype, 0) + tensor.bytes
            if filled >= (_BUCKET if closed else _FIRST_BUCKET):
                closed.append(filled)
            else:
                open_buckets[tensor.dtype] = filled
    return (*closed, *open_buckets.values())
