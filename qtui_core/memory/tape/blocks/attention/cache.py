"""Keys and values that inference keeps, and a training step whose outputs have them (DynamicCache
of transformers 5)."""

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
    """What a layer keeps: buffers of keys and values, and of how many tokens; one with a window
    its length as a tensor. What their gradients need the graph keeps."""

    keys: Buffer
    values: Buffer
    tokens: int
    window: int | None
    length: Buffer | None

    def visible(self) -> int:
        """Tokens of it that the next ones can see, besides themselves."""
        return self.tokens if self.window is None else min(self.tokens, self.window - 1)


@dataclass
class Cache:
    """The cache of all layers, by index.

    Attributes:
        length: tokens that have been computed.
        layers: what each layer keeps.
        cross: of a decoder that sees an encoder, the same of what that gave, which does not grow
            (EncoderDecoderCache).
        encoded: what the encoder gave, where more than one token is generated.
    """

    length: int = 0
    layers: dict[int, KeptTokens] = field(default_factory=dict)
    cross: Cache | None = None
    encoded: Tensor | None = None

    def lengthen(self, tape: Tape, length: int) -> None:
        """Goes on to when `length` tokens have been computed, a layer after the other."""
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
    """Whether the class makes a cache where it is not told to make none (use_cache)."""
    return not shape.is_encoder


def remember(
    tape: Tape, cache: Cache, key: Tensor, value: Tensor, tokens: int, window: int | None = None
) -> None:
    """`key, value = past_key_values.update(key, value)`, DynamicLayer.update: keys and values of
    `tokens` new tokens of each sequence are put behind what was there, in a tensor of its own, the
    first time too. The old keys are let go before there are new values, but by a layer with a
    window, which keeps of the new ones a view of the last tokens, and with that all of them until
    the next token. All callers give the result the names of what they gave, so that the tensors
    themselves become it."""
    kept = cache.layers.get(tape.layer)
    seen = tokens if kept is None else kept.visible() + tokens
    length = None if kept is None else kept.length
    if kept is None and window is not None:
        length = tape.new(1, "int64", WINDOW).buffer
    tape.operation("cat")
    keys = tape.new(key.elements // tokens * seen, key.dtype, CACHE)
    if kept is not None and window is None:
        kept.keys = keys.buffer
    # The layer has the type of its first keys, of which autocast may have made less of the values.
    values = tape.new(value.elements // tokens * seen, wider(key.dtype, value.dtype), CACHE)
    cache.layers[tape.layer] = KeptTokens(keys.buffer, values.buffer, seen, window, length)
    for tensor, joined in ((key, keys), (value, values)):
        tensor.elements, tensor.dtype, tensor.buffer = joined.elements, joined.dtype, joined.buffer


def _resized(tape: Tape, buffer: Buffer, tokens: int, wanted: int) -> Buffer:
    return Buffer(tape.events, buffer.nbytes // tokens * wanted, CACHE)
