"""The part of a model before its head, by family: embeddings, masks, layers and the last norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from qtui_core.memory.blocks.arrangements import run_layer
from qtui_core.memory.blocks.cache import Cache
from qtui_core.memory.blocks.linear import project
from qtui_core.memory.blocks.masks import causal_mask, look_for_packing
from qtui_core.memory.blocks.norm import normalize
from qtui_core.memory.blocks.rotary import tables
from qtui_core.memory.blocks.rotary_kinds import tables_of
from qtui_core.memory.blocks.state import Pass
from qtui_core.memory.checkpoint import checkpoint
from qtui_core.memory.model import Batch, Model
from qtui_core.memory.operations.embedding import embedding
from qtui_core.memory.operations.pointwise import add, dropout, scale
from qtui_core.memory.record import Label
from qtui_core.memory.reentrant import checkpoint_reentrant
from qtui_core.memory.shape import Attention, Embedding, Linear, Norm
from qtui_core.memory.tape import Tape, Tensor

FACTOR: Final = Label("_to_copy")
ARANGE: Final = Label("arange")
ADD: Final = Label("add")
ONES: Final = Label("ones")
CUMSUM: Final = Label("cumsum")
GATHER: Final = Label("gather")
ALIBI: Final = Label("alibi")


def decoder(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """LlamaModel.forward: hidden states after the last norm."""
    shape = model.shape
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    state.positions = arange(tape, state.queries)
    _unused = make_masks(tape, state, inputs_embeds.dtype, batch.padding)
    hidden = dropout(tape, inputs_embeds, shape.embedding_dropout)
    state.tables = tables_of(tape, shape, state.queries, hidden.dtype)
    state.entering = hidden
    del hidden
    hidden = run_layers(tape, model, state)
    return last_norm(tape, model, hidden)


def gpt2(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """GPT2Model.forward. The embeddings keep their names until it returns; layers are handed the
    numbers of the tokens."""
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    state.positions = arange(tape, state.queries)
    position_embeds = look_up(tape, model, model.shape.embeddings[1], state.positions)
    hidden = add(tape, inputs_embeds, position_embeds)
    make_masks(tape, state, inputs_embeds.dtype, batch.padding)
    state.entering = dropout(tape, hidden, model.shape.embedding_dropout)
    del hidden
    hidden = run_layers(tape, model, state)
    return last_norm(tape, model, hidden)


def gpt_bigcode(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """GPTBigCodeModel.forward. As GPT-2, in another order, and layers are not handed the numbers of
    the tokens."""
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    positions = arange(tape, state.queries)
    make_masks(tape, state, inputs_embeds.dtype, batch.padding)
    position_embeds = look_up(tape, model, model.shape.embeddings[1], positions)
    hidden = add(tape, inputs_embeds, position_embeds)
    state.entering = dropout(tape, hidden, model.shape.embedding_dropout)
    del hidden
    hidden = run_layers(tape, model, state)
    return last_norm(tape, model, hidden)


def opt(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """OPTDecoder.forward: positions are counted from a mask of floats, and embeddings may be
    narrower than the layers."""
    shape = model.shape
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    mask = batch.padding or tape.new(state.tokens, "fp32", ONES)
    state.positions = _counted(tape, mask)
    make_masks(tape, state, inputs_embeds.dtype, batch.padding, numbered=False)
    pos_embeds = look_up(tape, model, shape.embeddings[1], tape.new(state.tokens, "int64", ADD))
    for module in shape.embedding_modules:
        assert isinstance(module, Linear)
        inputs_embeds = project(tape, model.outside, module, inputs_embeds)
    hidden = add(tape, inputs_embeds, pos_embeds)
    state.entering = hidden
    del hidden
    hidden = run_layers(tape, model, state)
    hidden = last_norm(tape, model, hidden)
    for module in shape.head_modules:
        assert isinstance(module, Linear)
        hidden = project(tape, model.outside, module, hidden)
    return hidden


def _counted(tape: Tape, mask: Tensor) -> Tensor:
    """`(cumsum(mask) * mask - 1).long()`."""
    tape.operation("cumsum")
    sums = tape.new(mask.elements, mask.dtype, CUMSUM)
    product = tape.new(mask.elements, mask.dtype, CUMSUM)
    less = tape.new(mask.elements, mask.dtype, CUMSUM)
    del product
    positions = less if less.dtype == "int64" else tape.new(mask.elements, "int64", CUMSUM)
    del sums
    return positions


def bert(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """BertModel.forward: three embeddings are added, normed and dropped out."""
    state = begin(model, batch, cache)
    hidden = _bert_embeddings(tape, model, batch, state)
    make_masks(tape, state, hidden.dtype, batch.padding, numbered=False)
    state.entering = hidden
    del hidden
    return run_layers(tape, model, state)


def _bert_embeddings(tape: Tape, model: Model, batch: Batch, state: Pass) -> Tensor:
    """BertEmbeddings.forward, and RoBERTa's, which counts positions from the tokens that are not
    padding."""
    shape = model.shape
    _, positions, types = shape.embeddings
    tape.operation("gather")
    counted = None
    if shape.family == "roberta":
        counted = _counted_words(tape, state.tokens)
    kinds = tape.new(state.queries if counted is None else state.tokens, "int64", GATHER)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    type_embeds = look_up(tape, model, types, kinds, state.tokens)
    embeddings = add(tape, inputs_embeds, type_embeds)
    index = counted or tape.detach(kinds)
    position_embeds = look_up(tape, model, positions, index)
    embeddings = add(tape, embeddings, position_embeds)
    (norm,) = shape.embedding_modules
    assert isinstance(norm, Norm)
    embeddings = normalize(tape, model.outside, norm, embeddings)
    return dropout(tape, embeddings, shape.embedding_dropout)


def _counted_words(tape: Tape, tokens: int) -> Tensor:
    """create_position_ids_from_input_ids of RoBERTa: `(cumsum(mask).type_as(mask) + past) * mask`
    of the int32 mask of what is no padding, as int64, plus the padding's index."""
    tape.operation("cumsum")
    unequal = tape.new(tokens, "bool", CUMSUM)
    mask = tape.new(tokens, "int32", CUMSUM)
    del unequal
    sums = tape.new(tokens, "int64", CUMSUM)
    cast = tape.new(tokens, "int32", CUMSUM)
    del sums
    shifted = tape.new(tokens, "int32", CUMSUM)
    del cast
    product = tape.new(tokens, "int32", CUMSUM)
    del shifted
    long = tape.new(tokens, "int64", CUMSUM)
    positions = tape.new(tokens, "int64", CUMSUM)
    del long, product, mask
    return positions


def bloom(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """BloomModel.forward: embeddings are normed, and scores get a bias by distance."""
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
    """FalconModel.forward: a mask is always made, and the tables of rotation too."""
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
        state.mask = _with_alibi(tape, state.mask, state.alibi, dtype)
    state.tables = (tables(tape, state.queries, attention.head_dim, dtype),)
    state.entering = inputs_embeds
    hidden = run_layers(tape, model, state)
    return last_norm(tape, model, hidden)


def _alibi_of_mask(
    tape: Tape, state: Pass, heads: int, dtype: str, padding: Tensor | None
) -> Tensor:
    """build_alibi_tensor of Falcon: bfloat16 slopes times the numbers of a mask of ones."""
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


def _with_alibi(tape: Tape, mask: Tensor, alibi: Tensor, dtype: str) -> Tensor:
    """The mask added to scores, with alibi in it: `[batch, heads, queries, keys]`."""
    tape.operation("masked_fill")
    added = tape.new(mask.elements, dtype, ALIBI)
    scaled = tape.new(alibi.elements, dtype, ALIBI)
    hidden = tape.new(mask.elements, "bool", ALIBI)
    keys = math.isqrt(mask.elements)
    result = tape.new(alibi.elements * keys, dtype, ALIBI)
    del added, scaled, hidden
    return result


def _slopes(tape: Tape, heads: int) -> Tensor:
    """_get_alibi_slopes, float32: powers of a base for the largest power of two of heads, and of
    another for the rest."""
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


# ------------------------------------------------------------------ what they share


def begin(model: Model, batch: Batch, cache: Cache | None) -> Pass:
    """The state of a forward pass over a batch, after what is in the cache."""
    plan = model.plan
    queries = batch.ids.elements // plan.batch
    before = 0 if cache is None else cache.length
    return Pass(model.shape, plan, plan.batch, queries, before + queries, cache=cache)


def arange(tape: Tape, length: int) -> Tensor:
    """Numbers of the tokens, counted on from what is in the cache."""
    tape.operation("arange")
    plain = tape.new(length, "int64", ARANGE)
    shifted = tape.new(length, "int64", ADD)
    del plain
    return shifted


def embed_tokens(tape: Tape, model: Model, ids: Tensor) -> Tensor:
    """The token embedding. With checkpointing its output is made to need a gradient
    (enable_input_require_grads, which transformers 5 always calls then)."""
    shape = model.shape
    embedded = look_up(tape, model, shape.embeddings[0], ids)
    if shape.embedding_scales_itself:
        cast = embedded.dtype != model.plan.dtype
        _factor = tape.new(1, embedded.dtype, FACTOR) if cast else None
        embedded = scale(tape, embedded)
        del _factor
    if model.plan.checkpointing and not embedded.requires_grad:
        embedded.requires_grad = True
    scaled_after = shape.embedding_scale and not shape.embedding_scales_itself
    return scale(tape, embedded) if scaled_after else embedded


def look_up(
    tape: Tape, model: Model, spec: Embedding, indices: Tensor, times: int | None = None
) -> Tensor:
    """Rows of a table outside the layers. `times` is how many, where indices are expanded."""
    before, tape.path = tape.path, spec.name
    table = model.outside[f"{spec.name}.weight"]
    if times is not None:
        indices = tape.alias(indices, times)
    result = embedding(tape, table, indices, spec.columns)
    tape.path = before
    return result


#: Families that make both masks, whether layers use them or not.
_ALWAYS_BOTH_MASKS: Final = ("gemma2", "gemma3_text", "cohere2", "llama4_text", "qwen2_moe")


def make_masks(
    tape: Tape, state: Pass, dtype: str, padding: Tensor | None, *, numbered: bool = True
) -> list[Tensor | None]:
    """The masks that the kinds of layers need, and those that the class makes besides, which live
    as long as its forward(): they are returned. `numbered` is whether the class hands the numbers
    of the tokens on, in which packed sequences are then looked for."""
    looks = numbered and padding is None and state.cache is None
    windows = {
        layer.attention.window
        for layer in state.shape.layers
        if isinstance(layer.attention, Attention)
    }
    unused: list[Tensor | None] = []
    for window in _masks_made(state.shape.family, windows):
        if looks:
            look_for_packing(tape, state)
        mask = causal_mask(tape, state, dtype, padding, window)
        if window not in windows and windows:
            unused.append(mask)
        elif window is None:
            state.mask = mask
        else:
            state.window_mask = mask
    return unused


def _masks_made(family: str, windows: set[int | None]) -> list[int | None]:
    """The windows of the masks that a family makes, in order."""
    both = family in _ALWAYS_BOTH_MASKS
    made: list[int | None] = [None] if None in windows or not windows or both else []
    if family == "qwen2_moe" and windows == {None}:
        made.append(0)  # Qwen2MoeConfig: sliding_window is 0 unless use_sliding_window
    return made + [window for window in windows if window is not None]


def run_layers(tape: Tape, model: Model, state: Pass) -> Tensor:
    """All layers after another, each a checkpoint where the plan says so. What enters the first is
    taken from `state`, so that it is held no longer than by the loop of the real forward()."""
    hidden, state.entering = state.entering, None
    assert hidden is not None
    again = checkpoint_reentrant if model.plan.reentrant else checkpoint
    given = _given_to_layers(state)
    for index, layer in enumerate(model.shape.layers):
        tape.enter_layer(index)
        seen = given[getattr(layer.attention, "window", None) is not None]
        run = partial(run_layer, tape, model.layers[index], layer, seen)
        hidden = again(tape, run, hidden) if model.plan.checkpointing else run(hidden)
    tape.leave_layer()
    if state.cache is not None:
        state.cache.length += state.queries
    return hidden


def _given_to_layers(state: Pass) -> tuple[Pass, Pass]:
    """What layers that see everything are given, and layers with a window: of two masks their own,
    so that the checkpoints of one kind do not hold the other's."""
    if state.mask is None or state.window_mask is None:
        return state, state
    return replace(state, window_mask=None), replace(state, mask=None)


def last_norm(tape: Tape, model: Model, hidden: Tensor) -> Tensor:
    """The norm after the layers, if there is one."""
    spec = model.shape.final_norm
    return hidden if spec is None else normalize(tape, model.outside, spec, hidden)


#: Families whose backbone is not Llama's.
BACKBONES: Final[dict[str, Callable[[Tape, Model, Batch, Cache | None], Tensor]]] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "opt": opt,
    "bloom": bloom,
    "falcon": falcon,
    "bert": bert,
    "roberta": bert,
}
