"""Keys and values kept by inference, and by a training step whose outputs contain them
(DynamicCache of transformers 5)."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.tape.tape import Buffer, Tape, Tensor, wider

CACHE: Final = Label("key-value cache", Component.CACHE)
WINDOW: Final = Label("sliding_window", Component.CACHE)


@dataclass
class KeptTokens:
    """What a layer keeps: buffers of keys and values, and the number of tokens. A layer with a
    window also has its length as a tensor. The graph keeps what their gradients need."""

    keys: Buffer
    values: Buffer
    tokens: int
    window: int | None
    length: Buffer | None

    def visible(self) -> int:
        """How many of these tokens the next ones can see."""
        return self.tokens if self.window is None else min(self.tokens, self.window - 1)


@dataclass
class Cache:
    """The cache of all layers, by index.

    Attributes:
        length: tokens that have been computed.
        layers: what each layer keeps.
        cross: for a decoder with an encoder, keys and values of the encoder's output, which do not
            grow (EncoderDecoderCache).
        encoded: the encoder's output, if more than one token is generated.
    """

    length: int = 0
    layers: dict[int, KeptTokens] = field(default_factory=dict)
    cross: Cache | None = None
    encoded: Tensor | None = None

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


def has_cache(shape: ModelShape) -> bool:
    """Whether the class makes a cache by default (use_cache)."""
    return not shape.is_encoder


def remember(
    tape: Tape, cache: Cache, key: Tensor, value: Tensor, tokens: int, window: int | None = None
) -> None:
    """`key, value = past_key_values.update(key, value)`, DynamicLayer.update: keys and values of
    `tokens` new tokens of each sequence are concatenated to the old ones, in a new tensor, also the
    first time. The old keys are freed before the new values are made. A layer with a window keeps a
    view of the last tokens, and with it the whole tensor until the next token. All callers rebind
    their names to the result, so the given tensors themselves become it."""
    kept = cache.layers.get(tape.layer)
    seen = tokens if kept is None else kept.visible() + tokens
    length = None if kept is None else kept.length
    if kept is None and window is not None:
        length = tape.new(1, "int64", WINDOW).buffer
    tape.operation("cat")
    keys = tape.new(key.elements // tokens * seen, key.dtype, CACHE)
    if kept is not None and window is None:
        kept.keys = keys.buffer
    # The dtype of the cache is that of the first keys; autocast may have given the values another.
    values = tape.new(value.elements // tokens * seen, wider(key.dtype, value.dtype), CACHE)
    cache.layers[tape.layer] = KeptTokens(keys.buffer, values.buffer, seen, window, length)
    for tensor, joined in ((key, keys), (value, values)):
        tensor.elements, tensor.dtype, tensor.buffer = joined.elements, joined.dtype, joined.buffer


def _resized(tape: Tape, buffer: Buffer, tokens: int, wanted: int) -> Buffer:
    return Buffer(tape.events, buffer.nbytes // tokens * wanted, CACHE)
