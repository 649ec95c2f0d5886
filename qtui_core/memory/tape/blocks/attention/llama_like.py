"""Attention of families similar to Llama that differ in norms, rotation or products."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Attention, Norm
from qtui_core.memory.tape.blocks.attention.attention import Attended, attend, heads, repeats
from qtui_core.memory.tape.blocks.attention.masks import is_eager
from qtui_core.memory.tape.blocks.attention.rotary import rotate, rotated
from qtui_core.memory.tape.blocks.attention.rotary_variants import (
    rotate_and_cast,
    rotate_complex,
    rotate_in_float32,
)
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize, unit
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.pointwise import clamp_in_place, mul
from qtui_core.memory.tape.operations.views import cat, part, split
from qtui_core.memory.tape.tape import Tape, Tensor

ARANGE: Final = Label("arange")


def gemma3(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Gemma3Attention.forward: three products, then norms of queries and keys."""
    query, key, value = _projected(tape, weights, spec, hidden, state)
    assert spec.query_norm is not None
    assert spec.key_norm is not None
    query = normalize(tape, weights, spec.query_norm, query)
    key = normalize(tape, weights, spec.key_norm, key)
    query, key = rotate(tape, query, key, *state.tables[spec.table])
    return _finished(tape, weights, spec, query, key, value, state)


def olmo(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """OlmoAttention.forward, Olmo2Attention.forward: rotary tables in float32; OLMo 1 clips in
    place, OLMo 2 has norms over all heads."""
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    query = project(tape, weights, spec.query, hidden)
    if spec.query_norm is not None:
        query = normalize(tape, weights, spec.query_norm, query)
    key = project(tape, weights, spec.key, hidden)
    if spec.key_norm is not None:
        key = normalize(tape, weights, spec.key_norm, key)
    value = project(tape, weights, spec.value, hidden)
    if spec.clip:
        query = clamp_in_place(tape, query)
        key = clamp_in_place(tape, key)
        value = clamp_in_place(tape, value)
    query, key, value = _seen_as_heads(tape, spec, state, query, key, value)
    query, key = rotate_and_cast(tape, query, key, *state.tables[0])
    return _finished(tape, weights, spec, query, key, value, state)


def cohere(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """CohereAttention.forward, Cohere2Attention.forward."""
    query, key, value = _projected(tape, weights, spec, hidden, state)
    if spec.query_norm is not None and spec.key_norm is not None:
        query = normalize(tape, weights, spec.query_norm, query)
        key = normalize(tape, weights, spec.key_norm, key)
    if spec.positions == "rope":
        query, key = rotate_in_float32(tape, query, key, *state.tables[0])
    return _finished(tape, weights, spec, query, key, value, state)


def llama4(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Llama4TextAttention.forward: complex rotation, then scaling to length one; or neither, and
    queries scaled by their position. The view as heads comes before the rotation, which works on
    pairs."""
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    query = project(tape, weights, spec.query, hidden)
    key = project(tape, weights, spec.key, hidden)
    value = project(tape, weights, spec.value, hidden)
    repeated = repeats(spec, state)
    value = heads(tape, state, value, repeated)
    if spec.positions == "rope":
        copied = (is_eager(state), is_eager(state) or repeated)
        query, key = rotate_complex(tape, query, key, state.tables[0][0], copied)
    else:
        query, key = heads(tape, state, query, False), heads(tape, state, key, repeated)
    if spec.unit_norm:
        query = unit(tape, spec.head_dim, query)
        key = unit(tape, spec.head_dim, key)
    if spec.style == "llama4-tuned":
        _positions, scales = _temperatures(tape, state.queries)
        query = tape.to(mul(tape, query, scales), query.dtype)
    return _finished(tape, weights, spec, query, key, value, state)


def phi3(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Phi3Attention.forward: slices of one product, which lives as `qkv` until it returns."""
    assert spec.fused is not None
    qkv = project(tape, weights, spec.fused, hidden)
    queries = state.tokens * spec.heads * spec.head_dim
    keys = state.tokens * spec.kv_heads * spec.head_dim
    query = part(tape, qkv, queries)
    key = part(tape, qkv, keys)
    value = part(tape, qkv, keys)
    query, key, value = _seen_as_heads(tape, spec, state, query, key, value)
    query, key = _partly_rotated(tape, spec, query, key, *state.tables[0])
    return _finished(tape, weights, spec, query, key, value, state, heads_first=True)


def stablelm(
    tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass
) -> Attended:
    """StableLmAttention.forward. The rotated part and the rest have names until it returns."""
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    query = project(tape, weights, spec.query, hidden)
    key = project(tape, weights, spec.key, hidden)
    value = project(tape, weights, spec.value, hidden)
    query, key, value = _seen_as_heads(tape, spec, state, query, key, value)
    if spec.head_norms:
        query = _each_head(tape, weights, spec.head_norms[: spec.heads], query)
        key = _each_head(tape, weights, spec.head_norms[spec.heads :], key)
    query_rot, query_pass = _apart(tape, spec, query)
    key_rot, key_pass = _apart(tape, spec, key)
    query_rot, key_rot = rotate(tape, query_rot, key_rot, *state.tables[0])
    query = cat(tape, query_rot, query_pass)
    key = cat(tape, key_rot, key_pass)
    return _finished(tape, weights, spec, query, key, value, state, heads_first=True)


def _seen_as_heads(
    tape: Tape, spec: Attention, state: Pass, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The views as heads, after all three products."""
    query = heads(tape, state, query, True)
    key = heads(tape, state, key, True)
    return query, key, heads(tape, state, value, repeats(spec, state))


def _projected(
    tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each viewed as heads at once."""
    rotated = spec.positions == "rope"
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    query = heads(tape, state, project(tape, weights, spec.query, hidden), rotated)
    repeated = repeats(spec, state)
    key = heads(tape, state, project(tape, weights, spec.key, hidden), rotated or repeated)
    value = heads(tape, state, project(tape, weights, spec.value, hidden), repeated)
    return query, key, value


def _finished(
    tape: Tape,
    weights: Weights,
    spec: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Pass,
    *,
    heads_first: bool = False,
) -> Attended:
    """The attention itself and the output projection."""
    output, scores = attend(tape, spec, query, key, value, state, heads_first=heads_first)
    return project(tape, weights, spec.out, output), scores


def _partly_rotated(
    tape: Tape, spec: Attention, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor
) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb of Phi-3: the rotated part and the rest, concatenated again."""
    q_rot, q_pass = _apart(tape, spec, q)
    k_rot, k_pass = _apart(tape, spec, k)
    q_embed = cat(tape, rotated(tape, q_rot, cosines, sines), q_pass)
    k_embed = cat(tape, rotated(tape, k_rot, cosines, sines), k_pass)
    return q_embed, k_embed


def _apart(tape: Tape, spec: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """The rotated part of every head, and the rest. A slice of everything is the tensor itself."""
    turned = x.elements // spec.head_dim * spec.rotary_dims
    whole = turned == x.elements
    return x if whole else part(tape, x, turned), part(tape, x, x.elements - turned)


def _each_head(tape: Tape, weights: Weights, norms: tuple[Norm, ...], x: Tensor) -> Tensor:
    """StableLmLayerNormPerHead.forward: heads split, each with a norm, concatenated again."""
    size = x.elements // len(norms)
    heads = split(tape, x, *(size,) * len(norms))
    return cat(
        tape,
        *[normalize(tape, weights, norm, head) for norm, head in zip(norms, heads, strict=True)],
    )


def _temperatures(tape: Tape, length: int) -> tuple[Tensor, Tensor]:
    """Positions, int64, and the factors of queries that grow with them, float32 `[length]`."""
    tape.operation("log1p")
    counted = tape.new(length, "int64", ARANGE)
    positions = tape.new(length, "int64", Label("add"))
    del counted
    scales = tape.new(length, "fp32", Label("_to_copy"))
    for step in ("add", "div", "floor", "log1p", "mul", "add"):
        scales = tape.new(length, "fp32", Label(step))
    return positions, scales
