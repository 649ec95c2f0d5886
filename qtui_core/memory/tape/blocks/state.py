"""The state that a forward pass hands to its layers, and the keys and values kept by inference and
by a training step whose outputs contain them (DynamicCache of transformers 5)."""

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
