"""Attention of GPT-NeoX, Phi, OPT and BERT, where it differs from Llama's and GPT-2's."""

from __future__ import annotations

from qtui_core.memory.shape.model_shape import Attention
from qtui_core.memory.tape.blocks.attention.attention import Attended, attend
from qtui_core.memory.tape.blocks.attention.rotary import rotate
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.pointwise import scale
from qtui_core.memory.tape.operations.views import cat, part, split, transposed
from qtui_core.memory.tape.tape import Tape, Tensor


def gpt_neox(
    tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass
) -> Attended:
    """GPTNeoXAttention.forward. The product lives as `qkv` until it returns."""
    assert spec.fused is not None
    qkv = project(tape, weights, spec.fused, hidden)
    third = qkv.elements // 3
    query, key, value = split(tape, transposed(tape, qkv), third, third, third)
    query, key = _rotated_first(tape, spec, query, key, *state.tables[0])
    output, scores = attend(tape, spec, query, key, value, state, heads_first=True)
    return project(tape, weights, spec.out, output), scores


def phi(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """PhiAttention.forward. The rotated part and the rest have names until it returns, and keep
    alive the products of which they are views."""
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    query = transposed(tape, project(tape, weights, spec.query, hidden))
    key = transposed(tape, project(tape, weights, spec.key, hidden))
    value = project(tape, weights, spec.value, hidden)
    if state.cache is not None:
        value = transposed(tape, value)
    if spec.query_norm is not None and spec.key_norm is not None:
        query = normalize(tape, weights, spec.query_norm, query)
        key = normalize(tape, weights, spec.key_norm, key)
    query_rotated, query_passed = _apart(tape, spec, query)
    key_rotated, key_passed = _apart(tape, spec, key)
    query_rotated, key_rotated = rotate(tape, query_rotated, key_rotated, *state.tables[0])
    query = cat(tape, query_rotated, query_passed)
    key = cat(tape, key_rotated, key_passed)
    output, scores = attend(tape, spec, query, key, value, state, heads_first=True)
    return project(tape, weights, spec.out, output), scores


def opt(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """OPTAttention.forward: queries are scaled before the scores."""
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    query = scale(tape, project(tape, weights, spec.query, hidden))
    key = project(tape, weights, spec.key, hidden)
    value = project(tape, weights, spec.value, hidden)
    if state.cache is not None:
        key, value = transposed(tape, key), transposed(tape, value)
    output, scores = attend(tape, spec, query, key, value, state)
    return project(tape, weights, spec.out, output), scores


def bert(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """BertSelfAttention.forward, without the output projection, which belongs to another module."""
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    query = project(tape, weights, spec.query, hidden)
    key = project(tape, weights, spec.key, hidden)
    value = project(tape, weights, spec.value, hidden)
    return attend(tape, spec, query, key, value, state)


def _rotated_first(
    tape: Tape, spec: Attention, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor
) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb of GPT-NeoX: the first `rotary_dims` elements of a head are rotated and
    concatenated with the rest, even if the rest is empty."""
    q_rotated, q_passed = _apart(tape, spec, q)
    k_rotated, k_passed = _apart(tape, spec, k)
    q_embedded, k_embedded = rotate(tape, q_rotated, k_rotated, cosines, sines)
    q_embedded = cat(tape, q_embedded, q_passed)
    k_embedded = cat(tape, k_embedded, k_passed)
    return q_embedded, k_embedded


def _apart(tape: Tape, spec: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """The rotated part of every head, and the rest."""
    rotated = x.elements // spec.head_dim * spec.rotary_dims
    return part(tape, x, rotated), part(tape, x, x.elements - rotated)
