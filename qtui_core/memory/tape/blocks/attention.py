"""Self-attention of one layer, by `Attention.style`; and multi-head latent attention of DeepSeek V2
and V3: queries, keys and values from low ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.shape.model_shape import Attention, LatentAttention, Norm
from qtui_core.memory.tape.blocks.modules import normalize, project, unit
from qtui_core.memory.tape.blocks.state import (
    Pair,
    Pass,
    hold,
    is_eager,
    remember,
    rotate,
    rotate_and_cast,
    rotate_complex,
    rotate_halves,
    rotate_in_float32,
    rotated,
    turned,
)
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.operations import Heads, bmm, cat, efficient, flash, softmax, up, write
from qtui_core.memory.tape.tensors import SCALE, Tensor

#: The result of attention: its output, and the weights of eager attention, which are not used but
#: live until the layer returns.
Attended = tuple[Tensor, Tensor | None]
Three = tuple[Tensor, Tensor, Tensor]

#: Rows of a mask begin at multiples of this many elements (pad_bias in attention.cpp).
ALIGNED: Final = 16
#: Styles whose softmax is in the dtype of the scores, and those that do not cast it back.
_PLAIN_SOFTMAX: Final = ("gpt2", "bert", "llama4", "llama4-tuned")
_UNCAST: Final = ("bert", "llama4", "llama4-tuned")
#: Styles whose queries are laid out as `[batch, heads, queries, head_dim]` in memory, as results of
#: a concatenation are; views of a product are not.
_HEADS_FIRST: Final = (
    "phi3", "stablelm", "gpt_neox", "phi", "glm4_moe", "gpt_oss", "qwen3_next",
)  # fmt: skip
#: Styles that rotate queries and keys otherwise than Llama.
_ROTATIONS: Final = {"cohere": rotate_in_float32, "gpt_oss": rotate_halves}
#: The widest head that flash attention supports (sdp_utils.cpp, check_head_dim_size_flash).
_WIDEST_FLASH: Final = 256

# ---------------------------------------------------------------------- the classes


def llama(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """LlamaAttention.forward, with norms of heads (Qwen 3), without rotation (SmolLM3), or with
    dropout of the output (Seed-OSS)."""
    rope = spec.positions == "rope"
    query = heads(state, project(weights, spec.query, hidden), spec.heads, rope)
    query = normalize(weights, spec.query_norm, query)
    repeated = repeats(spec, state, query.dtype)
    key = heads(state, project(weights, spec.key, hidden), spec.kv_heads, rope or repeated)
    key = normalize(weights, spec.key_norm, key)
    value = project(weights, spec.value, hidden)
    value = heads(state, value, spec.kv_heads, repeated)
    if rope:
        query, key = rotate(query, key, *state.tables[0])
    key = by_hand(spec, key, state)
    value = by_hand(spec, value, state)
    output, scores = _finished(weights, spec, query, key, value, state)
    return output.dropout(spec.residual_dropout), scores


def gemma3(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Gemma3Attention.forward, that of gpt-oss, of GLM, which rotates a part of each head, and of
    Cohere, whose newer layers do not all rotate: three products, then norms, if any."""
    query, key, value = _projected(weights, spec, hidden, state)
    query = normalize(weights, spec.query_norm, query)
    key = normalize(weights, spec.key_norm, key)
    if spec.style == "glm4_moe":
        query, key = _rotated_first(spec, query, key, *state.tables[0])
    elif spec.positions == "rope":
        turn = _ROTATIONS.get(spec.style, rotate)
        query, key = turn(query, key, *state.tables[spec.table])
    return _finished(weights, spec, query, key, value, state)


def gemma4(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Gemma4TextAttention.forward: a norm of values too, which in some layers are the product of
    keys. Queries and keys are rotated before heads come first, so that no gradient is copied. In
    Gemma 3n values are made after the keys."""
    query = project(weights, spec.query, hidden)
    query = normalize(weights, spec.query_norm, query)
    query = rotated(query, *state.tables[spec.table])
    if spec.shares:
        key, value = state.shared[spec.table]
        return _finished(weights, spec, query, key, value, state)
    repeated = repeats(spec, state, query.dtype)
    key = project(weights, spec.key, hidden)
    if spec.style == "gemma3n":
        key = normalize(weights, spec.key_norm, key)
        key = rotated(key, *state.tables[spec.table])
        value = heads(state, project(weights, spec.value, hidden), spec.kv_heads, repeated)
    else:
        value = key if spec.value is None else project(weights, spec.value, hidden)
        value = heads(state, value, spec.kv_heads, repeated)
        key = normalize(weights, spec.key_norm, value if spec.value is None else key)
        key = rotated(key, *state.tables[spec.table])
    value = normalize(weights, spec.value_norm, value)
    if spec.shares == 0:
        state.shared[spec.table] = key, value
    return _finished(weights, spec, query, key, value, state)


def ministral3(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Ministral3Attention.forward: queries are scaled by their position after the rotation."""
    query, key, value = _projected(weights, spec, hidden, state)
    query, key = rotate(query, key, *state.tables[0])
    tape = state.tape
    tape.operation("log")
    scales = tape.new(state.queries, "fp32", "div")
    for step in ("floor", "add", "log", "mul", "add"):
        scales = tape.new(state.queries, "fp32", step)
    scales = scales.to(query.dtype)
    query = query * scales
    del scales
    return _finished(weights, spec, query, key, value, state)


def qwen3_next(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Qwen3NextAttention.forward, and that of Qwen 3.5: half of the product of queries is a gate of
    the output."""
    half = state.tokens * spec.heads * spec.head_dim
    query, gate = project(weights, spec.query, hidden).split(half, half)
    gate = gate.clone()
    query = normalize(weights, spec.query_norm, query)
    repeated = repeats(spec, state, query.dtype)
    key = heads(state, project(weights, spec.key, hidden), spec.kv_heads, rotated=True)
    key = normalize(weights, spec.key_norm, key)
    value = heads(state, project(weights, spec.value, hidden), spec.kv_heads, repeated)
    query, key = _rotated_first(spec, query, key, *state.tables[0])
    output, scores = attend(weights, spec, query, key, value, state)
    output = output * gate.sigmoid()
    return project(weights, spec.out, output), scores


def olmo2(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Olmo2Attention.forward: rotary tables in float32, and norms over all heads."""
    query = project(weights, spec.query, hidden)
    query = normalize(weights, spec.query_norm, query)
    key = project(weights, spec.key, hidden)
    key = normalize(weights, spec.key_norm, key)
    value = project(weights, spec.value, hidden)
    query, key, value = _seen_as_heads(spec, state, query, key, value)
    query, key = rotate_and_cast(query, key, *state.tables[0])
    return _finished(weights, spec, query, key, value, state)


def llama4(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Llama4TextAttention.forward: complex rotation, then scaling to length one; or neither, and
    queries scaled by factors that grow with their position. The view as heads comes before the
    rotation, which works on pairs."""
    query, key, value = products(weights, spec, hidden)
    repeated = repeats(spec, state, value.dtype)
    value = heads(state, value, spec.kv_heads, repeated)
    if spec.positions == "rope":
        copied = (is_eager(state), is_eager(state) or repeated)
        query, key = rotate_complex(query, key, state.tables[0][0], copied)
    else:
        query = heads(state, query, spec.heads, rotated=False)
        key = heads(state, key, spec.kv_heads, repeated)
    if spec.unit_norm:
        query = unit(spec.head_dim, query)
        key = unit(spec.head_dim, key)
    if spec.style == "llama4-tuned":
        state.tape.operation("log1p")
        counted = state.tape.new(state.queries, "int64", "arange")
        _positions = state.tape.new(state.queries, "int64", "add")
        del counted
        scales = state.tape.new(state.queries, "fp32", "_to_copy")
        for step in ("add", "div", "floor", "log1p", "mul", "add"):
            scales = state.tape.new(state.queries, "fp32", step)
        query = (query * scales).to(query.dtype)
    return _finished(weights, spec, query, key, value, state)


def phi3(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """Phi3Attention.forward: slices of one product, which lives as `qkv` until it returns. Inside
    apply_rotary_pos_emb the rotated part and the rest are concatenated again."""
    qkv = project(weights, spec.fused, hidden)
    queries, keys, values = _sizes(spec, state)
    query = qkv.part(queries)
    key = qkv.part(keys)
    value = qkv.part(values)
    query, key, value = _seen_as_heads(spec, state, query, key, value)
    query, key = _rotated_inside(spec, query, key, *state.tables[0])
    return _finished(weights, spec, query, key, value, state)


def stablelm(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """StableLmAttention.forward."""
    query, key, value = products(weights, spec, hidden)
    query, key, value = _seen_as_heads(spec, state, query, key, value)
    if spec.head_norms:
        query = _each_head(weights, spec.head_norms[: spec.heads], query)
        key = _each_head(weights, spec.head_norms[spec.heads :], key)
    return _partly_rotated(weights, spec, query, key, value, state)


def _each_head(weights: Weights, norms: tuple[Norm, ...], x: Tensor) -> Tensor:
    """StableLmLayerNormPerHead.forward: heads split, each with a norm, concatenated again."""
    heads = x.split(*(x.elements // len(norms),) * len(norms))
    return cat(*[normalize(weights, norm, head) for norm, head in zip(norms, heads, strict=True)])


def gpt2(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """GPT2Attention.forward: one product is split, and dropout follows the output projection."""
    query, key, value = project(weights, spec.fused, hidden).split(*_sizes(spec, state))
    query = heads(state, query, spec.heads, rotated=False)
    key = key_heads(spec, state, key)
    value = heads(state, value, spec.kv_heads, state.cache is not None)
    output, scores = _finished(weights, spec, query, key, value, state)
    return output.dropout(spec.residual_dropout), scores


def gpt_neox(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """GPTNeoXAttention.forward. The product lives as `qkv` until it returns."""
    qkv = project(weights, spec.fused, hidden)
    query, key, value = qkv.transposed().split(*(qkv.elements // 3,) * 3)
    query, key = _rotated_first(spec, query, key, *state.tables[0])
    return _finished(weights, spec, query, key, value, state)


def phi(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """PhiAttention.forward."""
    query = project(weights, spec.query, hidden).transposed()
    key = project(weights, spec.key, hidden).transposed()
    value = project(weights, spec.value, hidden)
    value = heads(state, value, spec.kv_heads, state.cache is not None)
    query = normalize(weights, spec.query_norm, query)
    key = normalize(weights, spec.key_norm, key)
    return _partly_rotated(weights, spec, query, key, value, state)


def opt(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """OPTAttention.forward: queries are scaled before the scores."""
    query = project(weights, spec.query, hidden) * SCALE
    query = heads(state, query, spec.heads, rotated=False)
    key = key_heads(spec, state, project(weights, spec.key, hidden))
    value = project(weights, spec.value, hidden)
    value = heads(state, value, spec.kv_heads, state.cache is not None)
    return _finished(weights, spec, query, key, value, state)


def bert(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Attended:
    """BertSelfAttention.forward, without the output projection, which belongs to another module."""
    query = project(weights, spec.query, hidden)
    query = heads(state, query, spec.heads, rotated=False)
    key = project(weights, spec.key, hidden)
    value = project(weights, spec.value, hidden)
    value = heads(state, value, spec.kv_heads, state.cache is not None)
    return attend(weights, spec, query, key, value, state)


#: The function of each style of attention, except DeepSeek's.
ATTENTIONS: Final[dict[str, Callable[[Weights, Any, Tensor, Pass], Attended]]] = {
    **dict.fromkeys(("llama", "gemma2", "seed_oss"), llama),
    **dict.fromkeys(("gemma3", "glm4_moe", "cohere", "gpt_oss"), gemma3),
    **dict.fromkeys(("gemma3n", "gemma4"), gemma4),
    **dict.fromkeys(("llama4", "llama4-tuned"), llama4),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), gpt2),
    "ministral3": ministral3, "qwen3_next": qwen3_next, "olmo2": olmo2, "phi3": phi3,
    "stablelm": stablelm, "gpt_neox": gpt_neox, "phi": phi, "opt": opt, "bert": bert,
}  # fmt: skip

# ---------------------------------------------------------------------- from low ranks


def latent(weights: Weights, spec: LatentAttention, hidden: Tensor, state: Pass) -> Attended:
    """DeepseekV3Attention.forward, and that of V2, which rotates complex numbers."""
    pairs = state.tokens * spec.heads
    rope = spec.rope_dim
    low = hidden
    if spec.query_down is not None:
        low = normalize(weights, spec.query_norm, project(weights, spec.query_down, hidden))
    q_states = project(weights, spec.query_up, low)
    del low
    q_states = q_states.transposed()
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


# ---------------------------------------------------------------------- their parts


def _sizes(spec: Attention, state: Pass) -> tuple[int, int, int]:
    """Elements of queries, keys and values."""
    keys = state.tokens * spec.kv_heads * spec.head_dim
    return state.tokens * spec.heads * spec.head_dim, keys, keys


def products(weights: Weights, spec: Attention, hidden: Tensor) -> Three:
    """Queries, keys and values."""
    query = project(weights, spec.query, hidden)
    key = project(weights, spec.key, hidden)
    return query, key, project(weights, spec.value, hidden)


def _projected(weights: Weights, spec: Attention, hidden: Tensor, state: Pass) -> Three:
    """Queries, keys and values, each viewed as heads at once."""
    rope, kv_heads = spec.positions == "rope", spec.kv_heads
    query = heads(state, project(weights, spec.query, hidden), spec.heads, rope)
    repeated = repeats(spec, state, query.dtype)
    key = heads(state, project(weights, spec.key, hidden), kv_heads, rope or repeated)
    value = project(weights, spec.value, hidden)
    return query, key, heads(state, value, kv_heads, repeated)


def _seen_as_heads(
    spec: Attention, state: Pass, query: Tensor, key: Tensor, value: Tensor
) -> Three:
    """The views as heads, after all three products."""
    query = heads(state, query, spec.heads, rotated=True)
    key = heads(state, key, spec.kv_heads, rotated=True)
    repeated = repeats(spec, state, value.dtype)
    return query, key, heads(state, value, spec.kv_heads, repeated)


def heads(state: Pass, x: Tensor, count: int, rotated: bool) -> Tensor:
    """`x.view(batch, length, count, head_dim).transpose(1, 2)`: heads before tokens. If the next
    operation rotates, repeats or caches it, or attention is eager, its gradient arrives with heads
    first and is copied, unless there is only one head."""
    return x.transposed() if count > 1 and (rotated or is_eager(state)) else x


def key_heads(spec: Attention, state: Pass, x: Tensor) -> Tensor:
    """Keys that are neither rotated nor repeated, as heads. Eager attention gives their gradient
    with tokens last, which can be viewed as the product's."""
    kept = state.cache is None or is_eager(state) or spec.kv_heads == 1
    return x if kept else x.transposed()


def by_hand(spec: Attention, x: Tensor, state: Pass) -> Tensor:
    """Keys or values, repeated by the layer itself under `RunPlan.repeat_kv`: they replace those of
    fewer heads, and live until the layer's output is projected (MistralFlashAttention2.forward of
    transformers 4.45). A cache, and eager attention, get those of fewer heads."""
    if not state.plan.repeat_kv or state.cache is not None or is_eager(state):
        return x
    return x.repeat(spec.heads // spec.kv_heads, viewed=spec.kv_heads == 1)


def repeats(spec: Attention, state: Pass, dtype: str) -> bool:
    """Whether keys and values of `dtype` are copied with heads before tokens for a torch kernel:
    when they are repeated to all heads, as for any kernel but flash attention, or put into a
    cache."""
    if state.cache is not None:
        return True
    grouped = flashes(dtype, state.mask_of(spec), (spec.head_dim,) * 2, state)
    return spec.heads != spec.kv_heads and (state.plan.repeat_kv or not grouped)


def _partly_rotated(
    weights: Weights, spec: Attention, query: Tensor, key: Tensor, value: Tensor, state: Pass
) -> Attended:
    """The end of a forward() in which the rotated part and the rest have names until it returns,
    and keep alive the products of which they are views."""
    query_rot, query_pass = _apart(spec, query)
    key_rot, key_pass = _apart(spec, key)
    query_rot, key_rot = rotate(query_rot, key_rot, *state.tables[0])
    query = cat(query_rot, query_pass)
    key = cat(key_rot, key_pass)
    return _finished(weights, spec, query, key, value, state)


def _rotated_inside(spec: Attention, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of Phi-3: the rotated part and the rest, concatenated again."""
    q_rot, q_pass = _apart(spec, q)
    k_rot, k_pass = _apart(spec, k)
    q_embed = cat(rotated(q_rot, cosines, sines), q_pass)
    k_embed = cat(rotated(k_rot, cosines, sines), k_pass)
    return q_embed, k_embed


def _rotated_first(spec: Attention, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of GPT-NeoX and GLM: the first `rotary_dims` elements of a head are
    rotated and concatenated with the rest, even if the rest is empty."""
    q_rot, q_pass = _apart(spec, q)
    k_rot, k_pass = _apart(spec, k)
    q_embed, k_embed = rotate(q_rot, k_rot, cosines, sines)
    q_embed = cat(q_embed, q_pass)
    k_embed = cat(k_embed, k_pass)
    return q_embed, k_embed


def _apart(spec: Attention, x: Tensor) -> Pair:
    """The rotated part of every head, and the rest. A slice of everything is the tensor itself."""
    size = x.elements // spec.head_dim * spec.rotary_dims
    whole = size == x.elements
    return x if whole else x.part(size), x.part(x.elements - size)


# ---------------------------------------------------------------------- the kernels


def _finished(
    weights: Weights, spec: Attention, query: Tensor, key: Tensor, value: Tensor, state: Pass
) -> Attended:
    """The attention itself and the output projection."""
    output, scores = attend(weights, spec, query, key, value, state)
    return project(weights, spec.out, output), scores


def attend(
    weights: Weights, spec: Attention, query: Tensor, key: Tensor, value: Tensor, state: Pass
) -> Attended:
    """The attention interface of transformers: scores, softmax, and the weighted mean of values, by
    the kernel that the plan and the dtypes allow. Flash attention gives its result the layout of
    the queries, and then it must be copied (`transpose(1, 2).contiguous()`)."""
    heads_first = spec.style in _HEADS_FIRST
    if state.cache and any(kept.each == "token" and kept.sizes for kept in spec.kept):
        remember(state.cache, key, value, state.queries, spec.window)
    elif state.cache is not None:
        hold(state.tape, state.cache, spec.kept, state.batch, key.dtype)
    keys = state.keys
    if state.cache is not None:
        keys = key.elements // (state.batch * spec.kv_heads * spec.head_dim)
    sizes = Heads(state.batch, state.queries, keys, spec.heads, spec.kv_heads, spec.head_dim)
    mask = state.mask_of(spec)
    if is_eager(state):
        # With one token both layouts are the same.
        kept = heads_first or state.queries == 1, state.cache is not None
        sinks = None if spec.sinks is None else weights[spec.sinks.name]
        return eager(spec, query, key, value, mask, sizes, kept, sinks)
    output = kernel(query, key, value, mask, sizes, state)
    widths = sizes.head_dim, sizes.of_value
    if heads_first and state.queries > 1 and flashes(query.dtype, mask, widths, state):
        output = output.clone()
    return output, None


def kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sizes: Heads, state: Pass
) -> Tensor:
    """sdpa_attention_forward, and torch's choice of kernel: flash in 16 bits without a mask,
    otherwise the memory-efficient one. With a mask transformers expands keys and values to all
    heads, except for a single query of each sequence, whose heads it treats as queries of one head
    (pack_gqa), as it does with heads too wide for flash attention. The additive mask is made in
    each call."""
    tape = query.tape
    times, queries = sizes.heads // sizes.kv_heads, sizes.queries
    apart = mask is not None or sizes.head_dim > _WIDEST_FLASH
    packed = apart and queries == 1 and times > 1 and not state.plan.repeat_kv
    if packed:
        sizes = replace(sizes, queries=times, heads=sizes.kv_heads)
    elif (apart or state.plan.repeat_kv) and times > 1:
        if key.elements < sizes.batch * sizes.keys * sizes.heads * sizes.head_dim:
            key, value = (x.repeat(times, viewed=sizes.kv_heads == 1) for x in (key, value))
        sizes = replace(sizes, kv_heads=sizes.heads)
    q, k, v = query.cast_low(), key.cast_low(), value.cast_low()
    if flashes(q.dtype, mask, (sizes.head_dim, sizes.of_value), state):
        return flash(q, k, v, sizes)
    bias = None if mask is None else mask.cast_low()
    if mask is not None and mask.dtype == "bool":
        tape.operation("where")
        _seen, _hidden = tape.new(1, q.dtype, "where"), tape.new(1, q.dtype, "where")
        bias = tape.new(sizes.batch * queries * sizes.keys, q.dtype, "where")
        del _seen, _hidden
    if bias is not None and sizes.keys % ALIGNED:
        tape.operation("constant_pad_nd")
        elements = bias.elements // sizes.keys * up(sizes.keys, ALIGNED)
        bias = tape.new(elements, q.dtype, "constant_pad_nd")
    output = efficient(q, k, v, sizes, bias)
    del bias
    return output.clone() if packed and sizes.heads > 1 else output


def flashes(dtype: str, mask: Tensor | None, widths: tuple[int, int], state: Pass) -> bool:
    """Whether flash attention is possible, for queries of `dtype` before any autocast, and heads of
    keys and of values of these `widths`."""
    return (
        mask is None
        and SIZES[state.tape.autocast or dtype] == 2
        and widths[0] == widths[1] <= _WIDEST_FLASH
        and state.plan.attention != "efficient"
    )


def eager(
    spec: Attention | LatentAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sizes: Heads,
    heads_first: tuple[bool, bool],
    sinks: Tensor | None,
) -> Attended:
    """eager_attention_forward: the matrix of scores, and its softmax in float32 and then in the
    dtype of the queries, which it also returns. Some families name no dtype, and some of these keep
    the dtype from autocast.

    `heads_first` says whether queries are laid out as `[batch, heads, queries, head_dim]` in
    memory, and whether keys and values are, after a concatenation in a cache.
    """
    times, pairs = sizes.heads // sizes.kv_heads, sizes.batch * sizes.heads
    key_states = key.repeat(times, viewed=sizes.kv_heads == 1)
    value_states = value.repeat(times, viewed=sizes.kv_heads == 1)
    # Matrices of several sequences must be evenly spaced. Results of concatenation and repetition,
    # which have heads first in memory, are; views of products and an expanded head are not.
    first, kept = heads_first
    several, alone, apart = sizes.batch > 1, sizes.kv_heads == 1 < times, not kept and times == 1
    # A cast makes an expanded head contiguous.
    expanded, of_value = (alone and x.dtype == (x.tape.autocast or x.dtype) for x in (key, value))
    copied = several and not first, several and (expanded or (apart and not first))
    scores = pairs * sizes.queries * sizes.keys
    weights = matmul(query, key_states, scores, copied) * SCALE
    if isinstance(spec, Attention) and spec.softcap:
        weights = weights * SCALE
        weights = weights.tanh()
        weights = weights * SCALE
    if mask is not None:
        weights = weights + mask
    if sinks is None:
        # A single expression in the real code, so the scores live until it has its result.
        probabilities = softmax(weights, None if spec.style in _PLAIN_SOFTMAX else "fp32")
        if spec.style not in _UNCAST:
            probabilities = probabilities.to(query.dtype)
        weights = probabilities
        del probabilities
        weights = weights.dropout(spec.dropout)
    else:  # all of these have names until the function returns
        rows = pairs * sizes.queries
        combined = cat(weights, sinks.viewed().expand(rows))
        combined = combined - combined.top_k(rows, "max")[0]
        probabilities = softmax(combined, combined.dtype)
        seen = probabilities.part(scores)
        weights = seen.dropout(spec.dropout).to(value.dtype)
    summed = pairs * sizes.queries * sizes.of_value
    output = matmul(weights, value_states, summed, (False, several and (of_value or apart)))
    if sizes.queries == 1:
        return output, weights
    if sizes.batch > 1:
        output = output.transposed()
    return output.clone(), weights


def matmul(a: Tensor, b: Tensor, elements: int, copied: tuple[bool, bool]) -> Tensor:
    """`torch.matmul`: factors are cast, the last first, and those that are not contiguous
    (`copied`) are copied, the first first."""
    b = b.cast_low()
    a = a.cast_low()
    left = a.clone() if copied[0] else a  # the casts live until the product exists
    right = b.clone() if copied[1] else b
    return bmm(left, right, elements)
