"""Masks of attention scores (transformers/masking_utils.py), also those of layers that see one
chunk of the sequence (Llama 4)."""

from __future__ import annotations

from qtui_core.memory.tape.blocks.state import Pass
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Tensor


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
