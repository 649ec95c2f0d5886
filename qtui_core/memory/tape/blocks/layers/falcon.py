"""Falcon: queries, keys and values from one product in three layouts, and a mask that is always
made."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Attention
from qtui_core.memory.tape.blocks.attention.attention import Attended, kernel
from qtui_core.memory.tape.blocks.attention.cache import remember
from qtui_core.memory.tape.blocks.attention.rotary import rotate
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.attention import Heads, composed
from qtui_core.memory.tape.operations.pointwise import clone
from qtui_core.memory.tape.operations.routing import lookup
from qtui_core.memory.tape.operations.views import part, repeat
from qtui_core.memory.tape.tape import Tape, Tensor

INDEX: Final = Label("index of the head")
BIAS: Final = Label("where")

Triple = tuple[Tensor, Tensor, Tensor]


def attention(
    tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass
) -> Attended:
    """FalconAttention.forward under SDPA."""
    assert spec.fused is not None
    grouped = spec.style == "falcon_grouped"
    fused = project(tape, weights, spec.fused, hidden)
    query, key, value = _apart(tape, spec, fused, state)
    if spec.positions == "rope":
        query, key = rotate(tape, query, key, *state.tables[0])
    if state.cache is not None:
        remember(tape, state.cache, key, value, state.queries)
    kv_heads = spec.heads if grouped else spec.kv_heads
    sizes = Heads(state.batch, state.queries, state.keys, spec.heads, kv_heads, spec.head_dim)
    if kv_heads == spec.heads:
        output = kernel(tape, query, key, value, state.mask, sizes, state)
    else:
        # Kernels share one head of keys among all queries only if told to; Falcon does not tell
        # them.
        output = _composed(tape, query, key, value, sizes, state)
    return project(tape, weights, spec.out, output), None


def _apart(tape: Tape, spec: Attention, fused: Tensor, state: Pass) -> Triple:
    """FalconAttention._split_heads. A single head of keys and values is selected by its index,
    which copies; in groups, keys and values are then copied for each head of the group, and queries
    are copied too."""
    queries = state.tokens * spec.heads * spec.head_dim
    keys = state.tokens * spec.kv_heads * spec.head_dim
    if spec.style == "falcon_grouped":
        query = part(tape, fused, queries)
        key = _looked_up(tape, fused, keys)
        value = _looked_up(tape, fused, keys)
        times = spec.heads // spec.kv_heads
        query = clone(tape, query)
        return query, repeat(tape, key, times), repeat(tape, value, times)
    if spec.kv_heads == 1:
        query = part(tape, fused, queries)
        return query, _looked_up(tape, fused, keys), _looked_up(tape, fused, keys)
    return part(tape, fused, queries), part(tape, fused, keys), part(tape, fused, keys)


def _looked_up(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """`x[..., [n], :]`, with an index that is copied to the GPU."""
    tape.operation("_to_copy")
    return lookup(tape, x, tape.new(1, "int64", INDEX), elements)


def _composed(
    tape: Tape, query: Tensor, key: Tensor, value: Tensor, sizes: Heads, state: Pass
) -> Tensor:
    query, key, value = tape.cast_low(query), tape.cast_low(key), tape.cast_low(value)
    bias = None
    if state.mask is not None:
        tape.operation("where")
        _seen, _hidden = tape.new(1, query.dtype, BIAS), tape.new(1, query.dtype, BIAS)
        bias = tape.new(sizes.batch * sizes.queries * sizes.keys, query.dtype, BIAS)
        del _seen, _hidden
    # Autocast has made its casts at the call and has no effect inside.
    autocast, tape.autocast = tape.autocast, None
    output = clone(tape, composed(tape, query, key, value, sizes, bias))
    tape.autocast = autocast
    return output
