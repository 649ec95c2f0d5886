"""BLOOM and Falcon before their heads: scores get a bias by distance (alibi), in Falcon only if
config.json says so."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Attention, Norm
from qtui_core.memory.step.backbones.building_blocks import (
    arange,
    begin,
    embed_tokens,
    last_norm,
    make_masks,
    run_layers,
)
from qtui_core.memory.step.model import Batch, Model
from qtui_core.memory.tape.blocks.attention.cache import Cache
from qtui_core.memory.tape.blocks.attention.masks import causal_mask
from qtui_core.memory.tape.blocks.attention.rotary import tables
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.tape import Tape, Tensor

ONES: Final = Label("ones")
CUMSUM: Final = Label("cumsum")
ALIBI: Final = Label("alibi")


def bloom(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """BloomModel.forward: embeddings are normalized, and scores get a bias by distance."""
    shape = model.shape
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    (norm,) = shape.embedding_modules
    assert isinstance(norm, Norm)
    hidden = normalize(tape, model.outside, norm, inputs_embeds)
    slopes = _slopes(tape, shape.layers[0].attention.heads)
    state.alibi = _alibi(tape, state, slopes, hidden.dtype, batch.padding)
    make_masks(tape, state, inputs_embeds.dtype, batch.padding, numbered=False)
    state.entering = hidden
    del hidden
    hidden = run_layers(tape, model, state)
    hidden = last_norm(tape, model, hidden)
    state.outputs = None
    del slopes
    return hidden


def falcon(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """FalconModel.forward: a mask is always made, and so are the rotary tables."""
    attention = model.shape.layers[0].attention
    assert isinstance(attention, Attention)
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    dtype = inputs_embeds.dtype
    if attention.positions == "alibi":
        state.alibi = _alibi_of_mask(tape, state, attention.heads, dtype, batch.padding)
    state.positions = arange(tape, state.queries)
    state.mask = causal_mask(tape, state, dtype, batch.padding, None, always=True)
    if state.alibi is not None and state.mask is not None:
        state.mask = _with_alibi(tape, state.mask, state.alibi, dtype, state.queries)
    state.tables = (tables(tape, state.queries, attention.head_dim, dtype),)
    state.entering = inputs_embeds
    hidden = run_layers(tape, model, state)
    return last_norm(tape, model, hidden)


def _alibi_of_mask(
    tape: Tape, state: Pass, heads: int, dtype: str, padding: Tensor | None
) -> Tensor:
    """build_alibi_tensor of Falcon: bfloat16 slopes times the positions from a mask of ones."""
    rows = state.batch * state.keys
    mask = padding or tape.new(rows, "int64", ONES)
    slopes = _slopes(tape, heads)
    sums = tape.new(rows, "int64", CUMSUM)
    less = tape.new(rows, "int64", CUMSUM)
    del sums
    numbers = tape.new(rows, "int64", CUMSUM)
    del less
    rounded = tape.new(heads, "bf16", ALIBI)
    alibi = tape.new(heads * rows, "bf16", ALIBI)
    del rounded, slopes, numbers, mask
    return tape.to(alibi, dtype)


def _with_alibi(tape: Tape, mask: Tensor, alibi: Tensor, dtype: str, queries: int) -> Tensor:
    """The mask that is added to scores, including alibi: `[batch, heads, queries, keys]`."""
    tape.operation("masked_fill")
    added = tape.new(mask.elements, dtype, ALIBI)
    scaled = tape.new(alibi.elements, dtype, ALIBI)
    hidden = tape.new(mask.elements, "bool", ALIBI)
    result = tape.new(alibi.elements * queries, dtype, ALIBI)
    del added, scaled, hidden
    return result


def _slopes(tape: Tape, heads: int) -> Tensor:
    """_get_alibi_slopes, float32: powers of one base for the largest power of two of heads, and of
    another base for the other heads."""
    tape.operation("pow")
    power = 1 << (heads.bit_length() - 1)
    _base = tape.new(1, "fp32", ALIBI)
    _powers = tape.new(power, "int32", ALIBI)
    slopes = tape.new(power, "fp32", ALIBI)
    if power != heads:
        _extra = tape.new(1, "fp32", ALIBI)
        _more = tape.new(heads - power, "int32", ALIBI)
        rest = tape.new(heads - power, "fp32", ALIBI)
        slopes = tape.new(heads, "fp32", ALIBI)
        del rest
    return slopes


def _alibi(tape: Tape, state: Pass, slopes: Tensor, dtype: str, padding: Tensor | None) -> Tensor:
    """The slope of each head times the number of each key, float32, cast to `dtype`."""
    heads, keys = slopes.elements, state.keys
    tape.operation("mul")
    if padding is not None:
        numbers = tape.new(state.batch * keys, "int64", ALIBI)
        product = tape.new(state.batch * heads * keys, "fp32", ALIBI)
        del numbers
        return tape.to(product, dtype)
    numbers = tape.new(keys, "int64", ALIBI)
    product = tape.new(heads * keys, "fp32", ALIBI)
    del numbers
    return tape.to(tape.new(state.batch * heads * keys, "fp32", ALIBI), dtype)
