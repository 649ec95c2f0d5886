"""What one of several GPUs holds: its shards of tensors, and its cut of the model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.model_shape import (
    Attention,
    LatentAttention,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Moe,
    Norm,
    Parameter,
)
from qtui_core.memory.shape.storage import StoredTensor
from qtui_core.memory.shape.weights import WeightBlock

#: DistributedDataParallel: bytes after which a bucket of gradients is closed, the first and the
#: others (torch/nn/parallel/distributed.py, bucket_cap_mb; dist._DEFAULT_FIRST_BUCKET_BYTES).
_FIRST_BUCKET: Final = 1 << 20
_BUCKET: Final = 25 << 20
#: Families whose classes have no plan for tensor parallelism: transformers does not run them so,
#: and of what others do the embedding and the output layer are not known.
_UNPLANNED: Final = frozenset(
    ("gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "stablelm", "bert", "roberta", "t5")
)


def is_sharded(tensor: StoredTensor, plan: RunPlan) -> bool:
    """Whether ZeRO-3 cuts a tensor: parameters in a floating type, and 4-bit weights that are
    packed into one (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model, leaves out other
    Params4bit). Their constants and buffers are no parameters: they stay whole on every GPU."""
    if tensor.component not in (Component.WEIGHTS, Component.ADAPTERS):
        return False
    packed = tensor.dtype == "uint8" and plan.four_bits
    return tensor.dtype in FLOATING or (packed and plan.quant_storage in FLOATING)


def shard_of(tensor: StoredTensor, ways: int) -> StoredTensor:
    """The part of a tensor on one of `ways` GPUs: rows, the last parts padded to the length of the
    first (torch fully_shard, FSDPParam._init_sharded_param)."""
    rows, *rest = tensor.shape or (1,)
    return tensor._replace(shape=(-(-rows // ways), *rest))


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


def updated(tensor: StoredTensor, plan: RunPlan) -> StoredTensor:
    """The part of a trained tensor that one GPU's optimizer updates."""
    return shard_of(tensor, plan.data_parallel) if plan.zero else tensor


def gradient_buckets(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> tuple[int, ...]:
    """Bytes of the buckets that DistributedDataParallel reduces gradients in, which it keeps
    beside them for the whole run (reducer.cpp, compute_bucket_assignment_by_size). None where
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


def local_shape(shape: ModelShape, plan: RunPlan) -> ModelShape:
    """The part of the model that one GPU works on under tensor parallelism.

    Tensor parallelism divides heads, the columns of what projects into them and the rows of what
    projects back, and the same of the MLP; norms stay whole. It divides the vocabulary too, of the
    embedding and of the output layer, where the class is planned so (`_tp_plan`).
    """
    ways = plan.tensor_parallel
    if ways == 1:
        return shape

    @cache
    def cut(layer: Layer) -> Layer:
        return replace(
            layer,
            attention=_cut_attention(layer.attention, ways),
            mlp=_cut_mlp(layer.mlp, ways),
            cross=None if layer.cross is None else _cut_heads(layer.cross, ways),
        )

    shape = _cut_vocabulary(shape, plan)
    layers, encoder = (tuple(map(cut, row)) for row in (shape.layers, shape.encoder))
    return replace(shape, layers=layers, encoder=encoder)


def _cut_vocabulary(shape: ModelShape, plan: RunPlan) -> ModelShape:
    """Rows of the token embedding and columns of the output layer, of which the first GPU has the
    most. Losses that take the output layer's weight need all of it."""
    ways = plan.tensor_parallel
    tokens, *others = shape.embeddings
    head = shape.head
    losses = ("stock", "stock-4.48", "in-place", "in-place-4.48")
    if head is None or shape.family in _UNPLANNED or (plan.trains and plan.loss not in losses):
        return shape
    if tokens.name.endswith("embed_tokens"):
        tokens = replace(tokens, rows=-(-tokens.rows // ways))
    head = replace(head, outputs=-(-head.outputs // ways))
    return replace(shape, embeddings=(tokens, *others), head=head)


def _cut_attention(
    attention: Attention | LatentAttention, ways: int
) -> Attention | LatentAttention:
    if isinstance(attention, Attention):
        return _cut_heads(attention, ways)
    return replace(
        attention,
        heads=attention.heads // ways,
        query_up=_columns(attention.query_up, ways),
        latent_up=_columns(attention.latent_up, ways),
        out=_rows(attention.out, ways),
    )


def _cut_heads(attention: Attention, ways: int) -> Attention:
    return replace(
        attention,
        heads=attention.heads // ways,
        kv_heads=attention.kv_heads // ways,
        query=attention.query and _columns(attention.query, ways),
        key=attention.key and _columns(attention.key, ways),
        value=attention.value and _columns(attention.value, ways),
        fused=attention.fused and _columns(attention.fused, ways),
        out=_rows(attention.out, ways),
        query_norm=_norm(attention.query_norm, attention, ways),
        key_norm=_norm(attention.key_norm, attention, ways),
    )


def _cut_mlp(mlp: Mlp | Moe, ways: int) -> Mlp | Moe:
    if isinstance(mlp, Moe):
        return replace(
            mlp,
            intermediate=mlp.intermediate // ways,
            stacked=tuple(_expert(p, mlp, ways) for p in mlp.stacked),
            shared=None if mlp.shared is None else _cut_dense(mlp.shared, ways),
        )
    return _cut_dense(mlp, ways)


def _cut_dense(mlp: Mlp, ways: int) -> Mlp:
    return replace(
        mlp,
        up=mlp.up and _columns(mlp.up, ways),
        gate=mlp.gate and _columns(mlp.gate, ways),
        fused=mlp.fused and _columns(mlp.fused, ways),
        down=_rows(mlp.down, ways),
    )


def _columns(linear: Linear, ways: int) -> Linear:
    return replace(linear, outputs=linear.outputs // ways)


def _rows(linear: Linear, ways: int) -> Linear:
    return replace(linear, inputs=linear.inputs // ways)


def _norm(norm: Norm | None, attention: Attention, ways: int) -> Norm | None:
    """A norm over all heads at once is cut with them; one over a head is not."""
    if norm is None or norm.size == attention.head_dim:
        return norm
    shape = (norm.shape[0] // ways, *norm.shape[1:]) if norm.shape else ()
    return replace(norm, size=norm.size // ways, shape=shape)


def _expert(stacked: Parameter, moe: Moe, ways: int) -> Parameter:
    """Stacked experts, each cut along what is a multiple of its width and not the model's."""
    wide = {moe.intermediate, 2 * moe.intermediate}
    count, *sizes = stacked.shape
    cut = [size // ways if size in wide and size != moe.hidden else size for size in sizes]
    if cut == sizes:  # as wide as the model: up has the columns first, down last
        index = 0 if "down" not in stacked.name else len(sizes) - 1
        cut[index] //= ways
    return replace(stacked, shape=(count, *cut))
