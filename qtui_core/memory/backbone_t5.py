"""T5ForConditionalGeneration before its head: an encoder, then a decoder that sees what it gave."""

from __future__ import annotations

from functools import partial
from typing import Final

from qtui_core.memory.blocks.norm import normalize
from qtui_core.memory.blocks.state import Pass
from qtui_core.memory.blocks.t5 import Biases, layer
from qtui_core.memory.checkpoint import checkpoint
from qtui_core.memory.model import Batch, Model
from qtui_core.memory.operations.embedding import embedding
from qtui_core.memory.operations.pointwise import dropout
from qtui_core.memory.record import Label
from qtui_core.memory.shape import Layer, Norm
from qtui_core.memory.tape import Tape, Tensor

SHIFTED: Final = Label("decoder_input_ids")


def t5(tape: Tape, model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """What the encoder gave, the inputs of the decoder and what it gave: all of these have names
    until the loss has been computed. Inputs and labels are as long as the plan's sequence."""
    shape, plan = model.shape, model.plan
    queries = batch.ids.elements // plan.batch
    state = Pass(shape, plan, plan.batch, queries, queries)
    first, last = shape.encoder_norm, shape.final_norm
    assert first is not None
    assert last is not None
    encoded = _stack(tape, model, state, batch.ids, shape.encoder, 0, first)
    tape.operation("new_zeros")
    shifted = tape.new(state.tokens, "int64", SHIFTED)
    copied = tape.new(state.tokens - state.batch, "int64", SHIFTED)
    del copied
    ignored = tape.new(state.tokens, "bool", SHIFTED)
    del ignored
    decoding = Pass(shape, plan, plan.batch, queries, queries, encoded=encoded)
    decoded = _stack(tape, model, decoding, shifted, shape.layers, len(shape.encoder), last)
    return encoded, shifted, decoded


def _stack(
    tape: Tape,
    model: Model,
    state: Pass,
    ids: Tensor,
    layers: tuple[Layer, ...],
    start: int,
    norm: Norm,
) -> Tensor:
    """T5Stack.forward. Its embedding is the shared one under another name."""
    shape, plan = model.shape, model.plan
    table = shape.embeddings[0]
    inputs_embeds = embedding(tape, model.outside[f"{table.name}.weight"], ids, table.columns)
    if plan.checkpointing and not inputs_embeds.requires_grad and tape.grad:
        inputs_embeds.requires_grad = True
    hidden = dropout(tape, inputs_embeds, shape.embedding_dropout)
    biases = Biases()
    for index, spec in enumerate(layers):
        tape.enter_layer(start + index)
        made = Biases()
        run = partial(layer, tape, model.layers[start + index], spec, state, biases, made)
        hidden = checkpoint(tape, run, hidden) if plan.checkpointing else run(hidden)
        del run
        # The checkpoint keeps `made`, but nothing in it.
        biases, made.own, made.cross = Biases(made.own, made.cross), None, None
    tape.leave_layer()
    hidden = normalize(tape, model.outside, norm, hidden)
    return dropout(tape, hidden, shape.final_dropout)
