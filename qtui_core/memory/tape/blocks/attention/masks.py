"""Masks of attention scores (transformers/masking_utils.py)."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.tape import Tape, Tensor

ARANGE: Final = Label("arange")
ADD: Final = Label("add")
COMPARISON: Final = Label("le")
DIFFERENCE: Final = Label("sub")
JOINED: Final = Label("cat")
SUMS: Final = Label("cumsum")
AND: Final = Label("bitwise_and")
ONES: Final = Label("new_ones")
ZERO: Final = Label("zeros")
CHOICE: Final = Label("where")
CAST: Final = Label("_to_copy")
LOOKUP: Final = Label("index")


def causal_mask(
    tape: Tape,
    state: Pass,
    dtype: str,
    padding: Tensor | None,
    window: int | None,
    *,
    always: bool = False,
) -> Tensor | None:
    """create_causal_mask, and the one with a sliding window. None if the kernel needs none: for
    torch kernels without padding whose window contains all keys, unless the class `always` asks for
    one (Falcon).

    A bool mask `[batch or 1, queries, keys]`; for eager attention one with 0 and the lowest number,
    in the dtype of the model. Encoders need a mask for padding only.
    """
    eager = is_eager(state)
    if state.plan.attention == "flash" and padding is None:
        return None  # flash attention gets the window and a causal flag
    windowed = window is not None and (eager or state.keys >= window)
    bidirectional = state.shape.is_encoder
    if padding is None and (bidirectional or not (eager or windowed or always)):
        return None
    if not eager and padding is None and state.queries == 1 and not windowed and not always:
        return None
    square = state.queries * state.keys
    tape.operation("bitwise_and")
    attended = None
    if padding is not None:
        attended = padding if padding.dtype == "bool" else tape.new(padding.elements, "bool", CAST)
    batch_positions = tape.new(state.batch, "int64", ARANGE)
    head_positions = tape.new(1, "int64", ARANGE)
    query_positions = offset(tape, state.queries)
    key_positions = offset(tape, state.keys)
    every = None if attended is None else tape.new(1, "bool", ONES)
    if windowed:
        mask = _window(tape, state)
        causal = tape.new(square, "bool", COMPARISON)
        mask = tape.new(square, "bool", AND)
        del causal
    else:
        seen = state.queries if bidirectional else square
        mask = tape.new(seen, "bool", COMPARISON)
    if attended is not None:
        mask = tape.new(mask.elements, "bool", AND)
        del every
        looked_up = tape.new(state.batch * state.keys, "bool", LOOKUP)
        mask = tape.new(state.batch * square, "bool", AND)
        del looked_up
    del batch_positions, head_positions, query_positions, key_positions
    if eager:
        zero = tape.new(1, dtype, ZERO)
        lowest = tape.new(1, dtype, ZERO)
        mask = tape.new(state.batch * square, dtype, CHOICE)
        del zero, lowest
    return mask


def _window(tape: Tape, state: Pass) -> Tensor:
    """sliding_window_overlay, combined by `&` with a mask of one element that is True."""
    square = state.queries * state.keys
    every = tape.new(1, "bool", ONES)
    earliest = tape.new(state.queries, "int64", DIFFERENCE)
    near = tape.new(square, "bool", COMPARISON)
    del earliest
    mask = tape.new(square, "bool", AND)
    del near, every
    return mask


def look_for_packing(tape: Tape, state: Pass) -> None:
    """find_packed_sequence_indices: whether the positions in a batch without padding jump."""
    tape.operation("diff")
    before_first = tape.new(state.batch, "int64", DIFFERENCE)
    prepended = tape.new(state.tokens + state.batch, "int64", JOINED)
    jumps = tape.new(state.tokens, "int64", DIFFERENCE)
    del prepended
    unequal = tape.new(state.tokens, "bool", COMPARISON)
    numbers = tape.new(state.tokens, "int64", SUMS)
    del unequal
    last = tape.new(state.batch, "bool", COMPARISON)
    every = tape.new(1, "bool", COMPARISON)
    del last, every, numbers, jumps, before_first


def offset(tape: Tape, length: int) -> Tensor:
    """`torch.arange(length) + offset`."""
    plain = tape.new(length, "int64", ARANGE)
    shifted = tape.new(length, "int64", ADD)
    del plain
    return shifted


def is_eager(state: Pass) -> bool:
    """Whether attention is eager: because it was requested, or because the class supports nothing
    else."""
    attention = state.shape.layers[0].attention
    return state.plan.attention == "eager" or getattr(attention, "eager", False)
