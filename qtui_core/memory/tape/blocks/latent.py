"""Multi-head latent attention of DeepSeek V2 and V3: queries, keys and values from low ranks."""

from __future__ import annotations

from qtui_core.memory.shape.model_shape import LatentAttention
from qtui_core.memory.tape.blocks.attention import Attended, eager, kernel
from qtui_core.memory.tape.blocks.linear import project
from qtui_core.memory.tape.blocks.masks import is_eager
from qtui_core.memory.tape.blocks.norms import normalize
from qtui_core.memory.tape.blocks.rotary import Pair, rotate, turned
from qtui_core.memory.tape.blocks.state import Pass, remember
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.kernels import Heads
from qtui_core.memory.tape.operations import cat, write
from qtui_core.memory.tape.tensors import Tensor


def latent(weights: Weights, spec: LatentAttention, hidden: Tensor, state: Pass) -> Attended:
    """DeepseekV3Attention.forward, and that of V2, which rotates complex numbers."""
    pairs = state.tokens * spec.heads
    rope = spec.rope_dim
    q_states = _queries(weights, spec, hidden).transposed()
    q_pass, q_rot = q_states.split(pairs * spec.nope_dim, pairs * rope)
    compressed_kv = project(weights, spec.latent_down, hidden)
    kv_nope, k_rot = compressed_kv.split(state.tokens * spec.latent_norm.size, state.tokens * rope)
    kv_nope = normalize(weights, spec.latent_norm, kv_nope)
    q_rot, k_rot = _rotated(spec, q_rot, k_rot, state)
    if state.cache is not None:  # the latents are cached and expanded again for every token
        remember(state.cache, kv_nope, k_rot, state.queries)
    query = cat(q_pass, q_rot)
    key, value = _expanded(weights, spec, kv_nope, k_rot, state)
    widths = spec.nope_dim + rope, spec.value_dim
    sizes = Heads(state.batch, state.queries, state.keys, spec.heads, spec.heads, *widths)
    if is_eager(state):
        output, scores = eager(spec, query, key, value, state.mask, sizes, (True, False), None)
        return project(weights, spec.out, output), scores
    output = kernel(query, key, value, state.mask, sizes, state)
    return project(weights, spec.out, output), None


def _queries(weights: Weights, spec: LatentAttention, hidden: Tensor) -> Tensor:
    """In one product, or from a low rank with a norm."""
    if spec.query_down is None:
        return project(weights, spec.query_up, hidden)
    low = normalize(weights, spec.query_norm, project(weights, spec.query_down, hidden))
    return project(weights, spec.query_up, low)


def _rotated(spec: LatentAttention, q: Tensor, k: Tensor, state: Pass) -> Pair:
    cosines, sines = state.tables[0]
    if spec.style == "deepseek_v2":
        return _rotated_as_complex(q, k, cosines)
    if not spec.interleaved:
        return rotate(q, k, cosines, sines)
    cosines, sines = (table.alias(table.elements // 2) for table in (cosines, sines))
    q_even, q_odd = (q.part(q.elements // 2) for _ in range(2))
    k_even, k_odd = (k.part(k.elements // 2) for _ in range(2))
    q_embed = turned(q_even, q_odd, cosines, sines)
    k_embed = turned(k_even, k_odd, cosines, sines)
    return q_embed, k_embed


def _rotated_as_complex(q: Tensor, k: Tensor, table: Tensor) -> Pair:
    """apply_rotary_emb of V2: two float32 elements are one complex number. The gradient of queries
    arrives in another layout than that of the product, and is copied."""
    q_complex = q.to("fp32")
    k_complex = k.to("fp32")
    q_out = q_complex.mul_complex(table).transposed().to(q.dtype)
    k_out = k_complex.mul_complex(table).to(k.dtype)
    return q_out, k_out


def _expanded(
    weights: Weights, spec: LatentAttention, kv_nope: Tensor, k_rot: Tensor, state: Pass
) -> Pair:
    """expand_kv: keys are written in place, from the expanded latent and the rotated part that all
    heads share."""
    tape = kv_nope.tape
    pairs = state.batch * state.keys * spec.heads
    kv_nope = project(weights, spec.latent_up, kv_nope).transposed()
    k_nope, value = kv_nope.split(pairs * spec.nope_dim, pairs * spec.value_dim)
    k_rot = k_rot.expand(pairs * spec.rope_dim)
    tape.operation("new_empty")
    key = tape.new(pairs * (spec.nope_dim + spec.rope_dim), kv_nope.dtype, "new_empty")
    key = write(key, k_nope, pairs * spec.nope_dim)
    key = write(key, k_rot, pairs * spec.rope_dim)
    return key, value
