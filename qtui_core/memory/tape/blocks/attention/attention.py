"""Self-attention of one layer, by `Attention.style`, and its kernels."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Attention
from qtui_core.memory.tape.blocks.attention.cache import remember
from qtui_core.memory.tape.blocks.attention.masks import is_eager
from qtui_core.memory.tape.blocks.attention.rotary import rotate
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.attention import Heads, efficient, flash, softmax, up
from qtui_core.memory.tape.operations.linear import bmm
from qtui_core.memory.tape.operations.pointwise import add, dropout, from_output, scale
from qtui_core.memory.tape.operations.views import contiguous, repeat, split, transposed
from qtui_core.memory.tape.tape import Tape, Tensor

BIAS: Final = Label("where")
PADDED: Final = Label("constant_pad_nd")

#: Rows of a mask begin at multiples of this many elements (pad_bias in attention.cpp).
ALIGNED: Final = 16

#: Families whose softmax is in the dtype of the scores, and those that do not cast it back.
_PLAIN_SOFTMAX: Final = ("gpt2", "bert", "llama4", "llama4-tuned")
_UNCAST: Final = ("bert", "llama4", "llama4-tuned")

#: The result of attention: its output, and the weights of eager attention, which are not used but
#: live until the layer returns.
Attended = tuple[Tensor, Tensor | None]

#: The widest head that flash attention supports (sdp_utils.cpp, check_head_dim_size_flash).
_WIDEST_FLASH: Final = 256


def llama(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """LlamaAttention.forward, with the norms of heads in Qwen 3."""
    assert spec.query is not None
    assert spec.key is not None
    assert spec.value is not None
    rotated = spec.positions == "rope"
    query = heads(tape, state, project(tape, weights, spec.query, hidden), rotated)
    if spec.query_norm is not None:
        query = normalize(tape, weights, spec.query_norm, query)
    key = heads(tape, state, project(tape, weights, spec.key, hidden), rotated)
    if spec.key_norm is not None:
        key = normalize(tape, weights, spec.key_norm, key)
    value = project(tape, weights, spec.value, hidden)
    value = heads(tape, state, value, repeats(spec, state))
    if rotated:
        query, key = rotate(tape, query, key, *state.tables[0])
    key = by_hand(tape, spec, key, state)
    value = by_hand(tape, spec, value, state)
    output, scores = attend(tape, spec, query, key, value, state)
    return project(tape, weights, spec.out, output), scores


def by_hand(tape: Tape, spec: Attention, x: Tensor, state: Pass) -> Tensor:
    """Keys or values, repeated by the layer itself under `RunPlan.repeat_kv`: they replace those of
    fewer heads, and live until the layer's output is projected (MistralFlashAttention2.forward of
    transformers 4.45). A cache, and eager attention, get those of fewer heads."""
    if not state.plan.repeat_kv or state.cache is not None or is_eager(state):
        return x
    return repeat(tape, x, spec.heads // spec.kv_heads)


def repeats(spec: Attention, state: Pass) -> bool:
    """Whether keys and values are copied with heads before tokens for a torch kernel: when they are
    repeated to all heads, or put into a cache."""
    if state.cache is not None and spec.kv_heads > 1:
        return True
    masked = state.mask_of(spec) is not None
    return spec.heads != spec.kv_heads and (masked or state.plan.repeat_kv)


def heads(tape: Tape, state: Pass, x: Tensor, rotated: bool) -> Tensor:
    """`x.view(batch, length, heads, head_dim).transpose(1, 2)`: heads before tokens. If the next
    operation rotates, repeats or caches it, or attention is eager, its gradient arrives with heads
    first and is copied."""
    return transposed(tape, x) if rotated or is_eager(state) else x


def gpt2(tape: Tape, weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """GPT2Attention.forward: one product is split, and dropout follows the output projection."""
    assert spec.fused is not None
    queries = state.tokens * spec.heads * spec.head_dim
    keys = state.tokens * spec.kv_heads * spec.head_dim
    query, key, value = split(tape, project(tape, weights, spec.fused, hidden), queries, keys, keys)
    if state.cache is not None and spec.kv_heads > 1:
        key, value = transposed(tape, key), transposed(tape, value)
    output, scores = attend(tape, spec, query, key, value, state)
    output = project(tape, weights, spec.out, output)
    return dropout(tape, output, spec.residual_dropout), scores


def attend(
    tape: Tape,
    spec: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Pass,
    *,
    heads_first: bool = False,
) -> Attended:
    """The attention interface of transformers: scores, softmax, and the weighted mean of values, by
    the kernel that the plan and the dtypes allow.

    `heads_first` says whether queries are laid out as `[batch, heads, queries, head_dim]` in
    memory, as results of a concatenation are, or not, as views of a product are. Flash attention
    gives its result the layout of the queries, and then it must be copied (`transpose(1,
    2).contiguous()`).
    """
    if state.cache is not None:
        remember(tape, state.cache, key, value, state.queries, spec.window)
    keys = state.keys_within(spec.window)
    sizes = Heads(state.batch, state.queries, keys, spec.heads, spec.kv_heads, spec.head_dim)
    mask = state.mask_of(spec)
    if is_eager(state):
        # With one token both layouts are the same.
        kept = heads_first or state.queries == 1, state.cache is not None
        return eager(tape, spec, query, key, value, mask, sizes, kept)
    output = kernel(tape, query, key, value, mask, sizes, state)
    if heads_first and state.queries > 1 and flashes(tape, query.dtype, mask, sizes, state):
        output = contiguous(tape, output)
    return output, None


def kernel(
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sizes: Heads,
    state: Pass,
) -> Tensor:
    """sdpa_attention_forward, and torch's choice of kernel: flash in 16 bits without a mask,
    otherwise the memory-efficient one. With a mask transformers expands keys and values to all
    heads, except for a single query of each sequence, whose heads it treats as queries of one head
    (pack_gqa). The additive mask is made in each call."""
    times, queries = sizes.heads // sizes.kv_heads, sizes.queries
    packed = mask is not None and queries == 1 and times > 1 and not state.plan.repeat_kv
    if packed:
        sizes = Heads(
            sizes.batch, times, sizes.keys, sizes.kv_heads, sizes.kv_heads, sizes.head_dim
        )
    elif (mask is not None or state.plan.repeat_kv) and times > 1:
        if key.elements < sizes.batch * sizes.keys * sizes.heads * sizes.head_dim:
            key, value = repeat(tape, key, times), repeat(tape, value, times)
        sizes = Heads(
            sizes.batch, sizes.queries, sizes.keys, sizes.heads, sizes.heads, sizes.head_dim
        )
    q, k, v = tape.cast_low(query), tape.cast_low(key), tape.cast_low(value)
    if flashes(tape, q.dtype, mask, sizes, state):
        return flash(tape, q, k, v, sizes)
    bias = None if mask is None else tape.cast_low(mask)
    if mask is not None and mask.dtype == "bool":
        tape.operation("where")
        _seen, _hidden = tape.new(1, q.dtype, BIAS), tape.new(1, q.dtype, BIAS)
        bias = tape.new(sizes.batch * queries * sizes.keys, q.dtype, BIAS)
        del _seen, _hidden
    if bias is not None and sizes.keys % ALIGNED:
        tape.operation("constant_pad_nd")
        bias = tape.new(bias.elements // sizes.keys * up(sizes.keys, ALIGNED), q.dtype, PADDED)
    output = efficient(tape, q, k, v, sizes, bias)
    del bias
    return contiguous(tape, output) if packed else output


def flashes(tape: Tape, dtype: str, mask: Tensor | None, sizes: Heads, state: Pass) -> bool:
    """Whether flash attention is possible, for queries of `dtype` before any autocast."""
    return (
        mask is None
        and SIZES[tape.autocast or dtype] == 2
        and sizes.head_dim == sizes.of_value
        and sizes.head_dim <= _WIDEST_FLASH
        and state.plan.attention != "efficient"
    )


def eager(
    tape: Tape,
    spec: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sizes: Heads,
    heads_first: tuple[bool, bool] = (False, False),
) -> Attended:
    """eager_attention_forward: the matrix of scores, and its softmax in float32 and then in the
    dtype of the queries, which it also returns. Some families name no dtype, and some of these keep
    the dtype from autocast.

    `heads_first` says whether queries are laid out as `[batch, heads, queries, head_dim]` in
    memory, and whether keys and values are, after a concatenation in a cache.
    """
    times = sizes.heads // sizes.kv_heads
    pairs = sizes.batch * sizes.heads
    key_states = repeat(tape, key, times)
    value_states = repeat(tape, value, times)
    # Results of concatenation and repetition have heads first in memory; views of products do not.
    first, kept = heads_first
    copied = (not first, not first and not kept and times == 1)
    scores = pairs * sizes.queries * sizes.keys
    weights = scale(tape, _matmul(tape, query, key_states, scores, copied))
    if spec.softcap:
        weights = scale(tape, weights)
        weights = from_output(tape, "tanh", weights)
        weights = scale(tape, weights)
    if mask is not None:
        weights = add(tape, weights, mask)
    # A single expression in the real code, so the scores live until it has its result.
    probabilities = softmax(tape, weights, plain=spec.style in _PLAIN_SOFTMAX)
    if spec.style not in _UNCAST:
        probabilities = tape.to(probabilities, query.dtype)
    weights = probabilities
    del probabilities
    weights = dropout(tape, weights, spec.dropout)
    summed = pairs * sizes.queries * sizes.of_value
    output = _matmul(tape, weights, value_states, summed, (False, not kept and times == 1))
    if sizes.queries == 1:
        return output, weights
    return contiguous(tape, transposed(tape, output)), weights


def _matmul(tape: Tape, a: Tensor, b: Tensor, elements: int, copied: tuple[bool, bool]) -> Tensor:
    """`torch.matmul`: factors are cast, the last first, and those that are not contiguous
    (`copied`) are copied, the first first."""
    b = tape.cast_low(b)
    a = tape.cast_low(a)
    left = contiguous(tape, a) if copied[0] else a  # the casts live until the product exists
    right = contiguous(tape, b) if copied[1] else b
    return bmm(tape, left, right, elements)
