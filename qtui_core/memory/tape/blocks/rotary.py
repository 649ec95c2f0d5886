"""Rotary position embedding: the tables of cosines and sines, and their use by family: in the dtype
of the model (Llama, gpt-oss), in float32 (OLMo, Cohere), or with complex numbers (Llama 4, DeepSeek
V2)."""

from __future__ import annotations

from qtui_core.memory.tape.blocks.state import Pass
from qtui_core.memory.tape.operations import cat
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Tensor

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
