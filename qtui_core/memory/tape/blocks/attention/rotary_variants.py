"""Rotary positions of families that compute them differently from Llama: in float32 (OLMo, Cohere),
or with complex numbers (Llama 4)."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.tape.blocks.attention.rotary import half_turn, rotate, tables
from qtui_core.memory.tape.operations.pointwise import add, mul, mul_complex
from qtui_core.memory.tape.operations.views import transposed
from qtui_core.memory.tape.tape import Tape, Tensor

POSITIONS: Final = Label("_to_copy")
FREQUENCIES: Final = Label("mul")
ONES: Final = Label("ones_like")
POLAR: Final = Label("polar")
SCALED: Final = Label("mul")

Pair = tuple[Tensor, Tensor]


def tables_of(tape: Tape, shape: ModelShape, length: int, dtype: str) -> tuple[Pair, ...]:
    """The rotary tables of a model whose hidden states have `dtype`. The two tables of a complex
    pair are the same one. Empty if nothing is rotated."""
    dims = shape.rotary_dims
    if not dims:
        return ()
    if shape.rotary_kind == "complex":
        table = _complex_table(tape, length, dims)
        return ((table, table),)
    if shape.rotary_kind == "float32":
        dtype = "fp32"
    return tuple(tables(tape, length, dims, dtype) for _ in range(shape.rotary_tables))


def rotate_and_cast(tape: Tape, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of OLMo: the tables are float32, and so are the results until both have
    been made."""
    given = q.dtype, k.dtype
    q_embed, k_embed = rotate(tape, q, k, cosines, sines)
    return tape.to(q_embed, given[0]), tape.to(k_embed, given[1])


def rotate_in_float32(tape: Tape, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> Pair:
    """apply_rotary_pos_emb of Cohere: queries and keys in float32, with adjacent elements
    rotated."""
    given = q.dtype
    q = tape.to(q, "fp32")
    k = tape.to(k, "fp32")
    q_embed = add(tape, mul(tape, q, cosines), mul(tape, half_turn(tape, q), sines))
    k_embed = add(tape, mul(tape, k, cosines), mul(tape, half_turn(tape, k), sines))
    return tape.to(q_embed, given), tape.to(k_embed, given)


def rotate_complex(
    tape: Tape, q: Tensor, k: Tensor, table: Tensor, copied: tuple[bool, bool]
) -> Pair:
    """apply_rotary_emb of Llama 4: two float32 elements are one complex number. `copied`: whether
    the gradients of queries, and of keys, arrive with heads first and must be copied for the
    view."""
    given = q.dtype, k.dtype
    q_complex = tape.to(q, "fp32")
    k_complex = tape.to(k, "fp32")
    q_out = mul_complex(tape, q_complex, table)
    k_out = mul_complex(tape, k_complex, table)
    if copied[0]:
        q_out = transposed(tape, q_out)
    if copied[1]:
        k_out = transposed(tape, k_out)
    return tape.to(q_out, given[0]), tape.to(k_out, given[1])


def _complex_table(tape: Tape, length: int, dims: int) -> Tensor:
    """Llama4TextRotaryEmbedding.forward: `[length, dims / 2]` complex numbers of 8 bytes, counted
    as twice as many float32 elements."""
    tape.operation("polar")
    positions = tape.new(length, "fp32", POSITIONS)
    freqs = tape.new(length * dims // 2, "fp32", FREQUENCIES)
    del positions
    ones = tape.new(length * dims // 2, "fp32", ONES)
    freqs_cis = tape.new(length * dims, "fp32", POLAR)
    del ones
    freqs_cis = tape.new(length * dims, "fp32", SCALED)
    del freqs
    return freqs_cis
