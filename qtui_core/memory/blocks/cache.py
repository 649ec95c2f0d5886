"""Keys and values that inference keeps (DynamicCache of transformers 5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from qtui_core.memory.record import Component, Label
from qtui_core.memory.tape import Buffer, Tape, Tensor

CACHE: Final = Label("key-value cache", Component.CACHE)


@dataclass(slots=True)
class Kept:
    """What a layer keeps: buffers of keys and values, and of how many tokens. There are no
    gradients in inference, so no more is needed."""

    keys: Buffer
    values: Buffer
    tokens: int
    window: int | None

    def visible(self) -> int:
        """Tokens of it that the next ones can see, besides themselves."""
        return self.tokens if self.window is None else min(self.tokens, self.window - 1)


@dataclass(slots=True)
class Cache:
    """The cache of all layers, by index.

    Attributes:
        length: tokens that have been computed.
        layers: what each layer keeps.
    """

    length: int = 0
    layers: dict[int, Kept] = field(default_factory=dict)

    def lengthen(self, tape: Tape, length: int) -> None:
        """Goes on to when `length` tokens have been computed, a layer after the other."""
        for index, kept in self.layers.items():
            tokens = length if kept.window is None else min(length, kept.window)
            tape.enter_layer(index)
            kept.keys = _resized(tape, kept.keys, kept.tokens, tokens)
            kept.values = _resized(tape, kept.values, kept.tokens, tokens)
            kept.tokens = tokens
        tape.leave_layer()
        self.length = length


def cached(
    tape: Tape, cache: Cache, key: Tensor, value: Tensor, tokens: int, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """DynamicLayer.update: keys and values of `tokens` new tokens of each sequence are put behind
    what was there, in a tensor of its own, the first time too. A layer with a window keeps of it a
    view of the last tokens, and with that all of it until the next token."""
    layer = tape.layer
    before = cache.layers.get(layer)
    seen = tokens if before is None else before.visible() + tokens
    tape.operation("cat")
    keys = tape.new(key.elements // tokens * seen, key.dtype, CACHE)
    values = tape.new(value.elements // tokens * seen, value.dtype, CACHE)
    cache.layers[layer] = Kept(keys.buffer, values.buffer, seen, window)
    return keys, values


def _resized(tape: Tape, buffer: Buffer, tokens: int, wanted: int) -> Buffer:
    return Buffer(tape.recorder, buffer.nbytes // tokens * wanted, CACHE)
