"""Attention composed of other operations ("math"), which torch uses if no kernel fits."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.operations.attention import Heads, softmax
from qtui_core.memory.tape.operations.linear import bmm
from qtui_core.memory.tape.operations.pointwise import clone, scale
from qtui_core.memory.tape.operations.views import repeat
from qtui_core.memory.tape.tape import Tape, Tensor

SAFE: Final = Label("_safe_softmax")
CAST: Final = Label("_to_copy")


def composed(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, sizes: Heads, mask: Tensor | None
) -> Tensor:
    """_scaled_dot_product_attention_math (aten/src/ATen/native/transformers/attention.cpp): 16-bit
    inputs are cast to float32, and so are scores and weights; if there are fewer heads of keys,
    they are copied for all heads of queries. The mask is added in place. Weights are also cast to
    the given dtype, although they are not used."""
    given = q.dtype
    pairs = sizes.batch * sizes.heads
    times = sizes.heads // sizes.kv_heads
    query_acc, key_acc, value_acc = tape.to(q, "fp32"), tape.to(k, "fp32"), tape.to(v, "fp32")
    query, key = scale(tape, query_acc), scale(tape, key_acc)
    rows = clone(tape, query) if sizes.batch > 1 else query
    scores = bmm(tape, rows, repeat(tape, key, times), pairs * sizes.queries * sizes.keys)
    del rows, key
    weights = softmax(tape, scores)
    _masked = tape.new(weights.elements, "bool", SAFE)
    _chosen = tape.new(weights.elements, "fp32", SAFE)
    del _masked, _chosen, scores
    columns = repeat(tape, value_acc, times)
    output = bmm(tape, weights, columns, pairs * sizes.queries * sizes.of_value)
    del columns
    result = tape.to(output, given)
    if given != "fp32":
        _cast = tape.new(weights.elements, given, CAST)
    return result
