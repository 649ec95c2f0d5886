"""Rotary position embedding: the tables of cosines and sines, and their use."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.operations.pointwise import add, mul, neg
from qtui_core.memory.tape.operations.views import cat, part
from qtui_core.memory.tape.tape import Tape, Tensor

POSITIONS: Final = Label("_to_copy")
FREQUENCIES: Final = Label("mul")
JOINED: Final = Label("cat")
COSINE: Final = Label("cos")
SINE: Final = Label("sin")
SCALED: Final = Label("mul")


def tables(tape: Tape, length: int, dims: int, dtype: str) -> tuple[Tensor, Tensor]:
    """LlamaRotaryEmbedding.forward: cosines and sines `[length, dims]` of `dtype`, without
    gradients, shared by all sequences."""
    before, tape.grad = tape.grad, False
    tape.operation("cos")
    positions = tape.new(length, "fp32", POSITIONS)
    frequencies = tape.new(length * dims // 2, "fp32", FREQUENCIES)
    del positions
    joined = tape.new(length * dims, "fp32", JOINED)
    cosines = tape.new(length * dims, "fp32", COSINE)
    cosines = tape.new(length * dims, "fp32", SCALED)
    sines = tape.new(length * dims, "fp32", SINE)
    sines = tape.new(length * dims, "fp32", SCALED)
    result = tape.to(cosines, dtype), tape.to(sines, dtype)
    del frequencies, joined
    tape.grad = before
    return result


def rotate(
    tape: Tape, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor
) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb of whole heads."""
    return rotated(tape, q, cosines, sines), rotated(tape, k, cosines, sines)


def rotated(tape: Tape, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`x * cos + rotate_half(x) * sin`."""
    return add(tape, mul(tape, x, cosines), mul(tape, half_turn(tape, x), sines))


def half_turn(tape: Tape, x: Tensor) -> Tensor:
    """rotate_half: `cat((-x2, x1), dim=-1)`; Cohere's `stack([-x2, x1], dim=-1).flatten(-2)` of
    every second element takes as much."""
    first = part(tape, x, x.elements // 2)
    second = part(tape, x, x.elements // 2)
    return cat(tape, neg(tape, second), first)
