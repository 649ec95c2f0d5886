"""The part of a model on one GPU: its cut of each layer under tensor parallelism, and its layers in
a pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from qtui_core.memory.plan.run_plan import RunPlan
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
from qtui_core.memory.step.backbones.families import BACKBONES

#: Families whose transformers classes have no plan for tensor parallelism, so that it is unknown
#: how the embedding and the output layer would be cut.
_UNPLANNED: Final = frozenset(
    ("gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "stablelm", "bert", "roberta", "t5")
)


def parts_of(shape: ModelShape, plan: RunPlan) -> tuple[ModelShape, ...]:
    """The parts of a model, cut for tensor parallelism, that one GPU may have: of the stages of a
    pipeline only those that can be the fullest."""
    return stages_of(cut_shape(shape, plan), plan)


def stages_of(shape: ModelShape, plan: RunPlan) -> tuple[ModelShape, ...]:
    """The pipeline stages that can be the fullest: the first, which has most micro batches at once,
    and the last, which has the logits. Each has as many layers as the longest stage.

    The last stage is without the embedding if that is a plain table; otherwise it is assumed to
    have it. For a model with an encoder and a decoder, one stage is assumed to be both.
    """
    if plan.pipeline_parallel == 1:
        return (shape,)
    longest = -(-len(shape.layers) // plan.pipeline_parallel)
    last = replace(shape, layers=shape.layers[len(shape.layers) - longest :])
    if shape.encoder:
        return (last,)
    first = replace(
        shape,
        layers=shape.layers[:longest],
        final_norm=None,
        head=None,
        head_modules=(),
        tied=False,
        logit_softcap=False,
    )
    if shape.family in BACKBONES or len(shape.embeddings) > 1 or shape.embedding_modules:
        return (first, last)
    received = replace(
        last, embeddings=(), tied=False, embedding_scale=False, embedding_dropout=0.0
    )
    return (first, received)


def cut_shape(shape: ModelShape, plan: RunPlan) -> ModelShape:
    """The cut of the model that one GPU works on under tensor parallelism.

    Tensor parallelism divides heads: the columns of the projections into them and the rows of the
    projections back; and the same in the MLP. Norms stay whole. It also divides the vocabulary of
    the embedding and of the output layer, if the plan of the class does (`_tp_plan`).
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
    """Cuts the rows of the token embedding and the columns of the output layer; the first GPU has
    the most. Losses that take the output layer's weight need all of it."""
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
    """The cut of a norm over all heads at once; a norm over one head stays whole."""
    if norm is None or norm.size == attention.head_dim:
        return norm
    shape = (norm.shape[0] // ways, *norm.shape[1:]) if norm.shape else ()
    return replace(norm, size=norm.size // ways, shape=shape)


def _expert(stacked: Parameter, moe: Moe, ways: int) -> Parameter:
    """The cut of stacked experts, along the dimension that is a multiple of their width and not the
    model's."""
    wide = {moe.intermediate, 2 * moe.intermediate}
    count, *sizes = stacked.shape
    cut = [size // ways if size in wide and size != moe.hidden else size for size in sizes]
    if cut == sizes:  # the model is as wide: cut by position instead
        index = 0 if "down" not in stacked.name else len(sizes) - 1
        cut[index] //= ways
    return replace(stacked, shape=(count, *cut))
