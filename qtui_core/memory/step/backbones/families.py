"""The part of a model before its head, by family: embeddings, masks, layers and the last norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Linear, Norm
from qtui_core.memory.step.backbones.alibi import bloom, falcon
from qtui_core.memory.step.backbones.building_blocks import (
    SCALED_LATE,
    arange,
    begin,
    embed_tokens,
    last_norm,
    look_up,
    make_masks,
    run_layers,
)
from qtui_core.memory.step.model import Batch, Model
from qtui_core.memory.tape.blocks.attention.cache import Cache
from qtui_core.memory.tape.blocks.attention.rotary_variants import tables_of
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.operations.pointwise import add, dropout, scale
from qtui_core.memory.tape.tape import Tape, Tensor

ADD: Final = Label("add")
ONES: Final = Label("ones")
CUMSUM: Final = Label("cumsum")
GATHER: Final = Label("gather")


def decoder(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """LlamaModel.forward: hidden states after the last norm."""
    shape = model.shape
    state = begin(model, batch, cache)
    inputs_embeds = batch.received or embed_tokens(tape, model, batch.ids)
    state.positions = arange(tape, state.queries)
    _unused = make_masks(tape, state, inputs_embeds.dtype, batch.padding)
    if shape.family in SCALED_LATE:
        inputs_embeds = scale(tape, inputs_embeds)
    hidden = dropout(tape, inputs_embeds, shape.embedding_dropout)
    state.tables = tables_of(tape, shape, state.queries, hidden.dtype)
    state.entering = hidden
    del hidden
    hidden = run_layers(tape, model, state)
    return last_norm(tape, model, hidden)


def gpt2(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """GPT2Model.forward. The embeddings have names until it returns; layers get the position
    ids."""
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
    """GPTBigCodeModel.forward. Like GPT-2 in another order, and layers do not get the position
    ids."""
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
    """OPTDecoder.forward: positions are counted from a float mask, and embeddings may be narrower
    than the layers."""
    shape = model.shape
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(tape, model, batch.ids)
    mask = batch.padding or tape.new(state.batch * state.keys, "fp32", ONES)
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
    """BertModel.forward: three embeddings are added, normalized and dropped out."""
    state = begin(model, batch, cache)
    embedding_output = _bert_embeddings(tape, model, batch, state)
    make_masks(tape, state, embedding_output.dtype, batch.padding, numbered=False)
    state.entering = embedding_output
    return run_layers(tape, model, state)


def _bert_embeddings(tape: Tape, model: Model, batch: Batch, state: Pass) -> Tensor:
    """BertEmbeddings.forward, and that of RoBERTa, which counts positions from the tokens that are
    not padding."""
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
    of the int32 mask of tokens that are not padding, as int64, plus the index of padding."""
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


#: Families whose backbone differs from Llama's.
BACKBONES: Final[dict[str, Callable[[Tape, Model, Batch, Cache | None], Tensor]]] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "opt": opt,
    "bloom": bloom,
    "falcon": falcon,
    "bert": bert,
    "roberta": bert,
}
