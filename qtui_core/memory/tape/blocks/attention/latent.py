"""Multi-head latent attention of DeepSeek V2 and V3: queries, keys and values from low ranks."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import LatentAttention
from qtui_core.memory.tape.blocks.attention.attention import Attended, kernel
from qtui_core.memory.tape.blocks.attention.cache import remember
from qtui_core.memory.tape.blocks.attention.rotary import rotate
from qtui_core.memory.tape.blocks.attention.rotary_variants import Pair
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.attention import Heads
from qtui_core.memory.tape.operations.pointwise import add, mul, mul_complex, subtract
from qtui_core.memory.tape.operations.views import cat, expand, part, split, transposed, write
from qtui_core.memory.tape.tape import Tape, Tensor

KEYS: Final = Label("new_empty")


def latent(
    tape: Tape, weights: Weights, spec: LatentAttention, hidden: Tensor, state: Pass
) -> Attended:
    """DeepseekV3Attention.forward, and that of V2, which rotates complex numbers."""
    pairs = state.tokens * spec.heads
    rope = spec.rope_dim
    q_states = transposed(tape, _queries(tape, weights, spec, hidden))
    q_pass, q_rot = split(tape, q_states, pairs * spec.nope_dim, pairs * rope)
    compressed_kv = project(tape, weights, spec.latent_down, hidden)
    kv_nope, k_rot = split(
        tape, compressed_kv, state.tokens * spec.latent_norm.size, state.tokens * rope
    )
    kv_nope = normalize(tape, weights, spec.latent_norm, kv_nope)
    q_rot, k_rot = _rotated(tape, spec, q_rot, k_rot, state)
    if state.cache is not None:  # the latents are cached and expanded again for every token
        remember(tape, state.cache, kv_nope, k_rot, state.queries)
    query = cat(tape, q_pass, q_rot)
    key, value = _expanded(tape, weights, spec, kv_nope, k_rot, state)
    sizes = Heads(
        state.batch,
        state.queries,
        state.keys,
        spec.heads,
        spec.heads,
        spec.nope_dim + rope,
        spec.value_dim,
    )
    output = kernel(tape, query, key, value, state.mask, sizes, state)
    return project(tape, weights, spec.out, output), None


def _queries(tape: Tape, weights: Weights, spec: LatentAttention, hidden: Tensor) -> Tensor:
    """In one product, or from a low rank with a norm."""
    if spec.query_down is None or spec.query_norm is None:
        return project(tape, weights, spec.query_up, hidden)
    return project(
        tape,
        weights,
        spec.query_up,
        normalize(tape, weights, spec.query_norm, project(tape, weights, spec.query_down, hidden)),
    )


def _rotated(tape: Tape, spec: LatentAttention, q: Tensor, k: Tensor, state: Pass) -> Pair:
    cosines, sines = state.tables[0]
    if spec.style == "deepseek_v2":
        return _rotated_as_complex(tape, q, k, cosines)
    if not spec.interleaved:
        return rotate(tape, q, k, cosines, sines)
    cosines, sines = (tape.alias(table, table.elements // 2) for table in (cosines, sines))
    q_even, q_odd = (part(tape, q, q.elements // 2) for _ in range(2))
    k_even, k_odd = (part(tape, k, k.elements // 2) for _ in range(2))
    q_embed = _turned(tape, q_even, q_odd, cosines, sines)
    k_embed = _turned(tape, k_even, k_odd, cosines, sines)
    return q_embed, k_embed


def _rotated_as_complex(tape: Tape, q: Tensor, k: Tensor, table: Tensor) -> Pair:
    """apply_rotary_emb of V2: two float32 elements are one complex number. The gradient of queries
    arrives in another layout than that of the product, and is copied."""
    q_complex = tape.to(q, "fp32")
    k_complex = tape.to(k, "fp32")
    q_out = tape.to(transposed(tape, mul_complex(tape, q_complex, table)), q.dtype)
    k_out = tape.to(mul_complex(tape, k_complex, table), k.dtype)
    return q_out, k_out


def _turned(tape: Tape, even: Tensor, odd: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`cat([even * cos - odd * sin, odd * cos + even * sin])`."""
    return cat(
        tape,
        subtract(tape, mul(tape, even, cosines), mul(tape, odd, sines)),
        add(tape, mul(tape, odd, cosines), mul(tape, even, sines)),
    )


def _expanded(
    tape: Tape,
    weights: Weights,
    spec: LatentAttention,
    kv_nope: Tensor,
    k_rot: Tensor,
    state: Pass,
) -> Pair:
    """expand_kv: keys are written in place, from the expanded latent and the rotated part that all
    heads share."""
    pairs = state.batch * state.keys * spec.heads
    kv_nope = transposed(tape, project(tape, weights, spec.latent_up, kv_nope))
    k_nope, value = split(tape, kv_nope, pairs * spec.nope_dim, pairs * spec.value_dim)
    k_rot = expand(tape, k_rot, pairs * spec.rope_dim)
    tape.operation("new_empty")
    key = tape.new(pairs * (spec.nope_dim + spec.rope_dim), kv_nope.dtype, KEYS)
    key = write(tape, key, k_nope, pairs * spec.nope_dim)
    key = write(tape, key, k_rot, pairs * spec.rope_dim)
    return key, value
