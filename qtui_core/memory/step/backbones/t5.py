"""T5ForConditionalGeneration before its head: an encoder, then a decoder that attends to its
output."""

from __future__ import annotations

from functools import partial
from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Layer, Norm
from qtui_core.memory.step.checkpointing import checkpoint
from qtui_core.memory.step.model import Batch, Model
from qtui_core.memory.tape.blocks.attention.cache import Cache
from qtui_core.memory.tape.blocks.layers.t5 import Biases, layer
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.operations.embedding import embedding
from qtui_core.memory.tape.operations.pointwise import dropout
from qtui_core.memory.tape.tape import Tape, Tensor

SHIFTED: Final = Label("decoder_input_ids")


def t5(
    tape: Tape, model: Model, batch: Batch, cache: Cache | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The encoder's output, the decoder's inputs and the decoder's output. All of them have names
    until the loss has been computed. Inputs and labels are as long as the plan's sequence.

    With a cache the decoder gets one token of each sequence, and the encoder does not run again.
    """
    shape, plan = model.shape, model.plan
    first, last = shape.encoder_norm, shape.final_norm
    assert first is not None
    assert last is not None
    encoded = None if cache is None else cache.encoded
    if encoded is None:
        queries = plan.sequence
        state = Pass(shape, plan, plan.batch, queries, queries)
        encoded = _stack(tape, model, state, batch.ids, shape.encoder, 0, first)
    if cache is None:
        queries = plan.sequence
        shifted = _shifted(tape, plan.batch, queries)
    else:
        queries = 1
        shifted = tape.alias(batch.ids, plan.batch)
        if plan.generate > 1:
            cache.encoded = encoded
    keys = queries if cache is None else cache.length + queries
    decoding = Pass(shape, plan, plan.batch, queries, keys, cache=cache, encoded=encoded)
    decoded = _stack(tape, model, decoding, shifted, shape.layers, len(shape.encoder), last)
    if cache is not None:
        cache.length = keys
    return encoded, shifted, decoded


def _shifted(tape: Tape, batch: int, queries: int) -> Tensor:
    """T5PreTrainedModel._shift_right: the labels of each sequence, shifted by one token."""
    tape.operation("new_zeros")
    shifted = tape.new(batch * queries, "int64", SHIFTED)
    copied = tape.new(batch * (queries - 1), "int64", SHIFTED)
    del copied
    ignored = tape.new(batch * queries, "bool", SHIFTED)
    del ignored
    return shifted


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
        # The checkpoint keeps `made` itself, but not its tensors.
        biases, made.own, made.cross = Biases(made.own, made.cross), None, None
    tape.leave_layer()
    hidden = normalize(tape, model.outside, norm, hidden)
    return dropout(tape, hidden, shape.final_dropout)
