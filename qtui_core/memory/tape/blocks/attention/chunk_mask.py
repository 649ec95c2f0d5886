"""The mask of layers that see one chunk of the sequence (Llama 4; transformers/masking_utils.py,
create_chunked_causal_mask)."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.blocks.attention.masks import is_eager, offset
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.tape import Tape, Tensor

ARANGE: Final = Label("arange")
ONES: Final = Label("new_ones")
ZEROS: Final = Label("zeros")
SUMS: Final = Label("cumsum")
INDEX: Final = Label("index")
DIFFERENCE: Final = Label("sub")
CHUNK: Final = Label("floor_divide")
COMPARISON: Final = Label("le")
AND: Final = Label("bitwise_and")
CHOICE: Final = Label("where")


def chunked_mask(
    tape: Tape, state: Pass, dtype: str, padding: Tensor | None, chunk: int
) -> Tensor | None:
    """A bool mask `[batch, queries, keys]`; for eager attention one in `dtype`. None for torch
    kernels without padding if a chunk contains all keys."""
    left_padding = _left_padding(tape, state, padding)
    eager = is_eager(state)
    if not eager and padding is None and state.keys < chunk:
        return None
    square = state.queries * state.keys
    tape.operation("bitwise_and")
    batch_positions = tape.new(state.batch, "int64", ARANGE)
    head_positions = tape.new(1, "int64", ARANGE)
    query_positions = offset(tape, state.queries)
    key_positions = offset(tape, state.keys)
    near = _same_chunk(tape, state)
    causal = tape.new(square, "bool", COMPARISON)
    mask = tape.new(state.batch * square, "bool", AND)
    del causal, near
    if padding is not None:
        attended = tape.new(state.batch * state.keys, "bool", INDEX)
        mask = tape.new(state.batch * square, "bool", AND)
        del attended
    del batch_positions, head_positions, query_positions, key_positions, left_padding
    if eager:
        seen, unseen = tape.new(1, dtype, ZEROS), tape.new(1, dtype, ZEROS)
        mask = tape.new(state.batch * square, dtype, CHOICE)
        del seen, unseen
    return mask


def _left_padding(tape: Tape, state: Pass, padding: Tensor | None) -> Tensor:
    """How many padding tokens precede each sequence, int64."""
    tape.operation("zeros")
    if padding is None:
        return tape.new(state.batch, "int64", ZEROS)
    counted = tape.new(padding.elements, "int64", SUMS)
    nothing = tape.new(padding.elements, padding.dtype, ZEROS)
    before = tape.new(padding.elements, "bool", COMPARISON)
    del counted, nothing
    result = tape.new(state.batch, "int64", SUMS)
    del before
    return result


def _same_chunk(tape: Tape, state: Pass) -> Tensor:
    """chunked_overlay, combined by `&` with a mask of one element that is True."""
    square = state.batch * state.queries * state.keys
    every = tape.new(1, "bool", ONES)
    chunks = [_chunks(tape, state.batch, length) for length in (state.keys, state.queries)]
    same = tape.new(square, "bool", COMPARISON)
    del chunks
    mask = tape.new(square, "bool", AND)
    del same, every
    return mask


def _chunks(tape: Tape, batch: int, length: int) -> Tensor:
    """The index of the chunk of each position."""
    shift = tape.new(batch, "int64", INDEX)
    shifted = tape.new(batch * length, "int64", DIFFERENCE)
    del shift
    numbers = tape.new(batch * length, "int64", CHUNK)
    del shifted
    return numbers
