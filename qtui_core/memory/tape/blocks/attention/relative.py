"""Relative positions of T5: which bucket each pair of tokens falls into, and its bias."""

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
    """T5Attention.compute_bias: `[1, heads, queries, keys]`, a view of what was looked up with the
    heads last."""
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
    """T5Attention._relative_position_bucket, int64. Near distances have a bucket each, far ones
    share them by the logarithm; where later positions are seen, half of the buckets are theirs."""

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
    share = new("fp32")  # its logarithm
    share = new("fp32")  # divided
    share = new("fp32")  # times the buckets that are left
    whole = new("int64")
    del share
    far = new("int64")
    del whole
    most = new("int64")
    far = new("int64")  # the lesser of both
    del most
    chosen = new("int64")
    if side is None:
        side = new("int64")
    del near, far, distance, chosen
    return side
