"""The state that a forward pass hands to its layers: masks of attention scores
(transformers/masking_utils.py), tables of rotary positions, and the keys and values kept by
inference and by a training step whose outputs contain them (DynamicCache of transformers 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.cached import KvStorage
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import Attention, CachedTensor, ModelShape
from qtui_core.memory.tape.operations import cat
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Buffer, Tensor, wider

CACHE: Final = Label("key-value cache", Component.CACHE)
WINDOW: Final = Label("sliding_window", Component.CACHE)
STATE: Final = Label("states", Component.CACHE)
UNPACKED: Final = "unpacked cache"


@dataclass
class KeptTokens:
    """What a layer keeps: buffers of keys and values, and the number of tokens. A layer with a
    window also has its length as a tensor. The graph keeps what their gradients need."""

    keys: Buffer
    values: Buffer
    tokens: int
    window: int | None
    length: Buffer | None


@dataclass
class Cache:
    """The cache of all layers, by index.

    Attributes:
        length: tokens that have been computed.
        layers: what each layer keeps.
        stored: how keys and values are quantized, None if they are not.
        states: of the layers that keep no tokens; in training with their history.
    """

    length: int = 0
    stored: KvStorage | None = None
    states: dict[int, list[Tensor]] = field(default_factory=dict)
    layers: dict[int, KeptTokens] = field(default_factory=dict)

    def lengthen(self, tape: Tape, length: int) -> None:
        """Grows to the state after `length` tokens, one layer after the other."""
        if length <= self.length:
            return
        for index, kept in self.layers.items():
            tokens = length if kept.window is None else min(length, kept.window)
            tape.enter_layer(index)
            kept.keys = _resized(tape, kept.keys, kept.tokens, tokens)
            kept.values = _resized(tape, kept.values, kept.tokens, tokens)
            kept.tokens = tokens
        tape.leave_layer()
        self.length = length


def remember(
    cache: Cache, key: Tensor, value: Tensor, tokens: int, window: int | None = None
) -> None:
    """`key, value = past_key_values.update(key, value)`, DynamicLayer.update: keys and values of
    `tokens` new tokens of each sequence are concatenated to the old ones, in a new tensor, also the
    first time. The old keys are freed before the new values are made. A layer with a window keeps a
    view of the last tokens, and with it the whole tensor until the next token. All callers rebind
    their names to the result, so the given tensors themselves become it."""
    tape = key.tape
    kept = cache.layers.get(tape.layer)
    seen = tokens
    if kept is not None:  # of those that are kept, what the next token can see
        seen += kept.tokens if kept.window is None else min(kept.tokens, kept.window - 1)
    length = None if kept is None else kept.length
    if kept is None and window is not None:
        length = tape.new(1, "int64", WINDOW).buffer
    tape.operation("cat")
    label = CACHE if cache.stored is None else UNPACKED
    keys = tape.new(key.elements // tokens * seen, key.dtype, label)
    held = _held(tape, cache, keys)
    if kept is not None and window is None:
        kept.keys = held
    # The dtype of the cache is that of the first keys; autocast may have given the values another.
    values = tape.new(value.elements // tokens * seen, wider(key.dtype, value.dtype), label)
    more = _held(tape, cache, values)
    cache.layers[tape.layer] = KeptTokens(held, more, seen, window, length)
    for tensor, joined in ((key, keys), (value, values)):
        if tensor.dtype != joined.dtype:  # cat casts the gradient back
            tape.output(tape.node("cat", (tensor,), lambda gradient: (gradient,)), tensor)
        tensor.elements, tensor.dtype, tensor.buffer = joined.elements, joined.dtype, joined.buffer


def hold(tape: Tape, cache: Cache, keeps: Iterable[CachedTensor], batch: int, dtype: str) -> None:
    """The states of a layer that keeps no tokens, which are made once and then overwritten."""
    if tape.layer not in cache.states:
        cache.states[tape.layer] = [
            tape.new(batch * kept.elements, {"fp32": "fp32"}.get(kept.dtype, dtype), STATE)
            for kept in keeps
            if kept.sizes
        ]


def _held(tape: Tape, cache: Cache, tensor: Tensor) -> Buffer:
    """What the cache holds of keys or values: the tensor itself, or the same quantized."""
    stored = cache.stored
    if stored is None:
        return tensor.buffer
    nbytes = tensor.elements * stored.bits // 8
    if stored.group:
        nbytes += tensor.elements // stored.group * (2 * SIZES[tensor.dtype])
    return Buffer(tape, nbytes, CACHE)


def _resized(tape: Tape, buffer: Buffer, tokens: int, wanted: int) -> Buffer:
    return Buffer(tape, buffer.nbytes // tokens * wanted, CACHE)


@dataclass
class Pass:
    """One forward pass.

    Attributes:
        tape: where it is recorded.
        shape, plan: of the model and the run; every option of the plan has a value.
        batch: sequences.
        queries: tokens of each sequence that are computed now.
        keys: tokens of each sequence that these can see, including those in the cache.
        tables: cosines and sines for rotary positions, each `[queries, rotary_dims]`; a pair for
            each kind of layer that has its own.
        mask: of scores, or None: bool `[batch, queries, keys]`; for eager attention additive, in
            the dtype of the model. `window_mask` is for layers with a window.
        positions: position ids, int64.
        cache: keys and values, in inference.
        entering: the input of the first layer, until that begins.
        images: what the first layers add, after each (Qwen 3 VL).
        own: what each layer adds of an embedding of its own, of all layers or of one (Gemma 4).
        shared: keys and values that later layers use, by their rotary table.
        held: what has a name beside the layers until something else takes it (Gemma 3n).
    """

    tape: Tape
    shape: ModelShape
    plan: RunPlan
    batch: int
    queries: int
    keys: int
    tables: tuple[tuple[Tensor, Tensor], ...] = ()
    mask: Tensor | None = None
    window_mask: Tensor | None = None
    positions: Tensor | None = None
    cache: Cache | None = None
    entering: Tensor | None = None
    images: Sequence[Tensor] = ()
    own: Tensor | None = None
    shared: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)

    def mask_of(self, spec: Attention) -> Tensor | None:
        """The mask for an attention."""
        return self.window_mask if spec.window is not None else self.mask

    def keys_within(self, window: int | None) -> int:
        """Tokens of each sequence that a layer with a window gets: those in its cache and the new
        ones."""
        if window is None or self.cache is None:
            return self.keys
        return min(self.keys - self.queries, window - 1) + self.queries

    @property
    def tokens(self) -> int:
        """Tokens that are computed now, of all sequences."""
        return self.batch * self.queries


# ---------------------------------------------------------------------- masks
# Also those of layers that see one chunk of the sequence (Llama 4).


def causal_mask(
    state: Pass, dtype: str, padding: Tensor | None, window: int | None
) -> Tensor | None:
    """create_causal_mask, and the one with a sliding window. None if the kernel needs none: for
    torch kernels without padding whose window contains all keys.

    A bool mask `[batch or 1, queries, keys]`; for eager attention one with 0 and the lowest number,
    in the dtype of the model. Encoders need a mask for padding only.
    """
    tape = state.tape
    eager = is_eager(state)
    if state.plan.attention == "flash" and padding is None:
        return None  # flash attention gets the window and a causal flag
    windowed = window is not None and (eager or state.keys >= window)
    bidirectional = state.shape.is_encoder
    if padding is None and (bidirectional or not (eager or windowed)):
        return None
    if not eager and padding is None and state.queries == 1 and not windowed:
        return None
    square = state.queries * state.keys
    tape.operation("bitwise_and")
    attended = padding
    if padding is not None and padding.dtype != "bool":
        attended = tape.new(padding.elements, "bool", "_to_copy")
    positions = _positions(state)
    every = None if attended is None else tape.new(1, "bool", "new_ones")
    if windowed:
        mask = _window(state)
        _causal = tape.new(square, "bool", "le")
        mask = tape.new(square, "bool", "bitwise_and")
        del _causal
    else:
        mask = tape.new(state.queries if bidirectional else square, "bool", "le")
    if attended is not None:
        mask = tape.new(mask.elements, "bool", "bitwise_and")
        del every
        _looked_up = tape.new(state.batch * state.keys, "bool", "index")
        mask = tape.new(state.batch * square, "bool", "bitwise_and")
        del _looked_up
    del positions
    return _additive(state, dtype) if eager else mask


def _positions(state: Pass) -> tuple[Tensor, ...]:
    """Indices of sequences, of the only head, of queries and of keys."""
    tape = state.tape
    batch, head = tape.new(state.batch, "int64", "arange"), tape.new(1, "int64", "arange")
    return batch, head, offset(tape, state.queries), offset(tape, state.keys)


def _additive(state: Pass, dtype: str) -> Tensor:
    """`where(mask, 0, lowest)`, for eager attention."""
    _zero, _lowest = (state.tape.new(1, dtype, "zeros") for _ in range(2))
    return state.tape.new(state.batch * state.queries * state.keys, dtype, "where")


def _window(state: Pass) -> Tensor:
    """sliding_window_overlay, combined by `&` with a mask of one element that is True."""
    tape = state.tape
    square = state.queries * state.keys
    _every = tape.new(1, "bool", "new_ones")
    earliest = tape.new(state.queries, "int64", "sub")
    _near = tape.new(square, "bool", "le")
    del earliest
    return tape.new(square, "bool", "bitwise_and")


def look_for_packing(state: Pass) -> None:
    """find_packed_sequence_indices: whether the positions in a batch without padding jump."""
    tape = state.tape
    tape.operation("diff")
    _before_first = tape.new(state.batch, "int64", "sub")
    prepended = tape.new(state.tokens + state.batch, "int64", "cat")
    _jumps = tape.new(state.tokens, "int64", "sub")
    del prepended
    unequal = tape.new(state.tokens, "bool", "le")
    _numbers = tape.new(state.tokens, "int64", "cumsum")
    del unequal
    _last = tape.new(state.batch, "bool", "le")
    _every = tape.new(1, "bool", "le")


def offset(tape: Tape, length: int) -> Tensor:
    """`torch.arange(length) + offset`."""
    _plain = tape.new(length, "int64", "arange")
    return tape.new(length, "int64", "add")


def is_eager(state: Pass) -> bool:
    """Whether attention is eager: because it was requested, or because the class supports nothing
    else."""
    attention = state.shape.layers[0].attention
    return state.plan.attention == "eager" or getattr(attention, "eager", False)


def chunked_mask(state: Pass, dtype: str, padding: Tensor | None, chunk: int) -> Tensor | None:
    """create_chunked_causal_mask: a bool mask `[batch, queries, keys]`; for eager attention one in
    `dtype`. None for torch kernels without padding if a chunk contains all keys."""
    tape = state.tape
    left_padding = _left_padding(state, padding)
    eager = is_eager(state)
    if not eager and padding is None and state.keys < chunk:
        return None
    square = state.queries * state.keys
    tape.operation("bitwise_and")
    positions = _positions(state)
    near = _same_chunk(state)
    causal = tape.new(square, "bool", "le")
    mask = tape.new(state.batch * square, "bool", "bitwise_and")
    del causal, near
    if padding is not None:
        _attended = tape.new(state.batch * state.keys, "bool", "index")
        mask = tape.new(state.batch * square, "bool", "bitwise_and")
        del _attended
    del positions, left_padding
    return _additive(state, dtype) if eager else mask


def _left_padding(state: Pass, padding: Tensor | None) -> Tensor:
    """How many padding tokens precede each sequence, int64."""
    tape = state.tape
    tape.operation("zeros")
    if padding is None:
        return tape.new(state.batch, "int64", "zeros")
    counted = tape.new(padding.elements, "int64", "cumsum")
    nothing = tape.new(padding.elements, padding.dtype, "zeros")
    _before = tape.new(padding.elements, "bool", "le")
    del counted, nothing
    return tape.new(state.batch, "int64", "cumsum")


def _same_chunk(state: Pass) -> Tensor:
    """chunked_overlay, combined by `&` with a mask of one element that is True."""
    tape = state.tape
    square = state.batch * state.queries * state.keys
    _every = tape.new(1, "bool", "new_ones")
    chunks = [_chunks(state, length) for length in (state.keys, state.queries)]
    _same = tape.new(square, "bool", "le")
    del chunks
    return tape.new(square, "bool", "bitwise_and")


def _chunks(state: Pass, length: int) -> Tensor:
    """The index of the chunk of each position."""
    tape, batch = state.tape, state.batch
    shift = tape.new(batch, "int64", "index")
    _shifted = tape.new(batch * length, "int64", "sub")
    del shift
    return tape.new(batch * length, "int64", "floor_divide")


# ---------------------------------------------------------------------- rotary positions
# Tables of cosines and sines, and their use by family: in the dtype of the model (Llama, gpt-oss),
# in float32 (OLMo, Cohere), or with complex numbers (Llama 4, DeepSeek V2).

Pair = tuple[Tensor, Tensor]


def tables_of(state: Pass, dtype: str) -> tuple[Pair, ...]:
    """The rotary tables of a model whose hidden states have `dtype`. The two tables of a complex
    pair are the same one. Empty if nothing is rotated."""
    shape = state.shape
    dims = shape.rotary_dims
    if not dims:
        return ()
    if shape.rotary_kind == "complex":
        table = _complex_table(state.tape, state.queries, dims)
        return ((table, table),)
    if shape.rotary_kind == "float32":
        dtype = "fp32"
    return tuple(_tables(state, each, dtype) for each in (dims, *shape.more_tables))


def _tables(state: Pass, dims: int, dtype: str) -> Pair:
    """LlamaRotaryEmbedding.forward: cosines and sines `[length, dims]` of `dtype`, without
    gradients, shared by all sequences. Those of GptOssRotaryEmbedding are not doubled, those of
    Qwen3VLTextRotaryEmbedding are of all tokens, composed of three positions of each."""
    tape, kind = state.tape, state.shape.rotary_kind
    before, tape.grad = tape.grad, False
    tape.operation("cos")
    length, grids = (state.tokens, 3) if kind == "grids" else (state.queries, 1)
    positions = tape.new(grids * length, "fp32", "_to_copy")
    frequencies = tape.new(grids * length * dims // 2, "fp32", "mul")
    del positions
    plain = kind in ("halves", "grids")
    joined = frequencies if plain else tape.new(length * dims, "fp32", "cat")
    cosines = tape.new(joined.elements, "fp32", "cos")
    cosines = tape.new(joined.elements, "fp32", "mul")
    sines = tape.new(joined.elements, "fp32", "sin")
    sines = tape.new(joined.elements, "fp32", "mul")
    if grids > 1:
        sines = tape.new(length * dims, "fp32", "cat")
        cosines = tape.new(length * dims, "fp32", "cat")
    result = cosines.to(dtype), sines.to(dtype)
    del frequencies, joined
    tape.grad = before
    return result


def _complex_table(tape: Tape, length: int, dims: int) -> Tensor:
    """Llama4TextRotaryEmbedding.forward: `[length, dims / 2]` complex numbers of 8 bytes, counted
    as twice as many float32 elements."""
    tape.operation("polar")
    positions = tape.new(length, "fp32", "_to_copy")
    _freqs = tape.new(length * dims // 2, "fp32", "mul")
    del positions
    ones = tape.new(length * dims // 2, "fp32", "ones_like")
    _freqs_cis = tape.new(length * dims, "fp32", "polar")
    del ones
    return tape.new(length * dims, "fp32", "mul")


def rotate(q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of whole heads."""
    return rotated(q, cosines, sines), rotated(k, cosines, sines)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`x * cos + cat((-x2, x1), dim=-1) * sin`; Cohere's `stack([-x2, x1], dim=-1).flatten(-2)` of
    every second element takes as much."""
    product = x * cosines
    x1, x2 = (x.part(x.elements // 2) for _ in range(2))
    return product + cat(-x2, x1) * sines


def rotate_halves(q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of gpt-oss: the halves of a head are rotated and concatenated."""
    q_first, q_second = q.split(*(q.elements // 2,) * 2)
    q_embed = turned(q_first, q_second, cosines, sines)
    k_first, k_second = k.split(*(k.elements // 2,) * 2)
    return q_embed, turned(k_first, k_second, cosines, sines)


def turned(first: Tensor, second: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`cat([first * cos - second * sin, second * cos + first * sin])`."""
    return cat(first * cosines - second * sines, second * cosines + first * sines)


def rotate_and_cast(q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of OLMo: the tables are float32, and so are the results until both have
    been made."""
    q_embed, k_embed = rotate(q, k, cosines, sines)
    return q_embed.to(q.dtype), k_embed.to(k.dtype)


def rotate_in_float32(q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of Cohere: queries and keys in float32, with adjacent elements
    rotated."""
    given = q.dtype
    q = q.to("fp32")
    k = k.to("fp32")
    q_embed, k_embed = rotate(q, k, cosines, sines)
    return q_embed.to(given), k_embed.to(given)


def rotate_complex(q: Tensor, k: Tensor, table: Tensor, copied: tuple[bool, bool]) -> Pair:
    """apply_rotary_emb of Llama 4: two float32 elements are one complex number. `copied`: whether
    the gradients of queries, and of keys, arrive with heads first and must be copied for the
    view."""
    q_complex = q.to("fp32")
    k_complex = k.to("fp32")
    q_out = q_complex.mul_complex(table)
    k_out = k_complex.mul_complex(table)
    if copied[0]:
        q_out = q_out.transposed()
    if copied[1]:
        k_out = k_out.transposed()
    return q_out.to(q.dtype), k_out.to(k.dtype)
