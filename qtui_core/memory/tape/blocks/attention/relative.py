"""Relative positions of T5: the bucket of each pair of tokens, and its bias."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Attention, Embedding
from qtui_core.memory.tape.blocks.linear.embedding import look_up
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.tape import Tape, Tensor

POSITIONS: Final = Label("positions")
BUCKETS: Final = Label("buckets")


def relative_bias(tape: Tape, weights: Weights, spec: Attention, state: Pass) -> Tensor:
    """T5Attention.compute_bias: `[1, heads, queries, keys]`, a view of the looked-up rows, whose
    last dimension is the heads."""
    (table,) = spec.extra
    assert isinstance(table, Embedding)
    tape.operation("arange")
    plain = tape.new(state.queries, "int64", POSITIONS)
    context = tape.new(state.queries, "int64", POSITIONS)
    del plain
    memory = tape.new(state.keys, "int64", POSITIONS)
    relative = tape.new(state.queries * state.keys, "int64", POSITIONS)
    buckets = _buckets(tape, relative.elements, both_ways=not spec.causal)
    values = look_up(tape, weights, table, buckets)
    del context, memory, relative
    return values


def _buckets(tape: Tape, pairs: int, *, both_ways: bool) -> Tensor:
    """T5Attention._relative_position_bucket, int64. Small distances have a bucket each, large ones
    share buckets by their logarithm; with `both_ways`, half of the buckets are for later
    positions."""

    def new(dtype: str) -> Tensor:
        return tape.new(pairs, dtype, BUCKETS)

    tape.operation("bucket")
    side = None
    if both_ways:
        later = new("bool")
        cast = new("int64")
        del later
        times = new("int64")
        del cast
        side = new("int64")
        del times
        distance = new("int64")
    else:
        zeros = new("int64")
        least = new("int64")
        del zeros
        distance = new("int64")
        del least
    near = new("bool")
    share = new("fp32")
    share = new("fp32")  # divided
    share = new("fp32")  # the logarithm
    share = new("fp32")  # divided
    share = new("fp32")  # times the remaining buckets
    whole = new("int64")
    del share
    far = new("int64")
    del whole
    most = new("int64")
    far = new("int64")  # the smaller of both
    del most
    chosen = new("int64")
    if side is None:
        side = new("int64")
    del near, far, distance, chosen
    return side
