"""BLOOM: attention with alibi that is always eager, and layers that return its weights too."""

from __future__ import annotations

from qtui_core.memory.shape.model_shape import Attention, Layer, Mlp
from qtui_core.memory.tape.blocks.attention.attention import Attended
from qtui_core.memory.tape.blocks.attention.cache import remember
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.attention import softmax
from qtui_core.memory.tape.operations.linear import bmm
from qtui_core.memory.tape.operations.pointwise import add, add_constant, clone, dropout
from qtui_core.memory.tape.operations.scores import biased_product, bloom_gelu
from qtui_core.memory.tape.operations.views import part, transposed
from qtui_core.memory.tape.tape import Tape, Tensor


def layer(tape: Tape, weights: Weights, spec: Layer, hidden: Tensor, state: Pass) -> Tensor:
    """BloomBlock.forward. The weights of its attention stay in the loop over layers as `outputs`,
    until the next layer has returned."""
    assert isinstance(spec.mlp, Mlp)
    first, second = spec.norms
    normed = normalize(tape, weights, first, hidden)
    residual = normed if spec.normed_residual else hidden
    attended, scores = _attention(tape, weights, spec, normed, residual, state)
    normed = normalize(tape, weights, second, attended)
    residual = normed if spec.normed_residual else attended
    output = _feed_forward(tape, weights, spec.mlp, normed, residual)
    if tape.recomputing is None:
        state.outputs = scores
    return output


def _attention(
    tape: Tape, weights: Weights, layer: Layer, hidden: Tensor, residual: Tensor, state: Pass
) -> Attended:
    """BloomAttention.forward."""
    spec = layer.attention
    assert isinstance(spec, Attention)
    assert spec.fused is not None
    assert state.alibi is not None
    pairs = state.batch * spec.heads
    squares = pairs * state.queries * state.keys
    fused = project(tape, weights, spec.fused, hidden)
    third = fused.elements // 3
    query, key, value = (part(tape, fused, third) for _ in range(3))
    if state.cache is not None:
        remember(tape, state.cache, key, value, state.queries)
    if state.queries > 1:
        query = clone(tape, query)
    if state.cache is None:
        key = clone(tape, key)
        value = clone(tape, value)
    scores = biased_product(tape, state.alibi, query, key, squares)
    attention = scores if state.mask is None else add_constant(tape, scores)
    probabilities = tape.to(softmax(tape, tape.to(attention, "fp32")), query.dtype)
    probabilities = dropout(tape, probabilities, spec.dropout)
    context = bmm(tape, probabilities, value, pairs * state.queries * spec.head_dim)
    if state.queries > 1:
        context = clone(tape, transposed(tape, context))
    output = project(tape, weights, spec.out, context)
    output = add(tape, residual, dropout(tape, output, spec.residual_dropout))
    return output, probabilities


def _feed_forward(
    tape: Tape, weights: Weights, spec: Mlp, hidden: Tensor, residual: Tensor
) -> Tensor:
    """BloomMLP.forward."""
    assert spec.up is not None
    hidden = bloom_gelu(tape, project(tape, weights, spec.up, hidden))
    output = project(tape, weights, spec.down, hidden)
    return add(tape, residual, dropout(tape, output, spec.dropout))
