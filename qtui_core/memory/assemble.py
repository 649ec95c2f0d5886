"""A model on the tape: its weights, and its forward pass with the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from qtui_core.memory.blocks.arrangements import run_layer
from qtui_core.memory.blocks.linear import project
from qtui_core.memory.blocks.loss import LOGITS, causal_loss, causal_loss_4_48
from qtui_core.memory.blocks.masks import causal_mask
from qtui_core.memory.blocks.norm import normalize
from qtui_core.memory.blocks.rotary import tables
from qtui_core.memory.blocks.state import Cache, Pass
from qtui_core.memory.blocks.weights import Weights
from qtui_core.memory.checkpoint import checkpoint
from qtui_core.memory.operations.embedding import embedding
from qtui_core.memory.operations.linear import linear
from qtui_core.memory.operations.pointwise import add, dropout, scale
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.record import OUTSIDE, Label, Phase
from qtui_core.memory.shape import Attention, ModelShape
from qtui_core.memory.tape import Tape, Tensor
from qtui_core.memory.weights import blocks_of

ARANGE: Final = Label("arange")
ADD: Final = Label("add")


@dataclass(frozen=True)
class Batch:
    """What a step is given: token ids and labels `[batch, sequence]` int64, and the mask of padded
    sequences, if there are such."""

    ids: Tensor
    labels: Tensor
    padding: Tensor | None


class Model:
    """A model whose weights are on the tape.

    Attributes:
        shape, plan: nothing of the plan is left open.
        outside: weights outside of layers.
        layers: weights of each layer; those of an encoder first.
    """

    def __init__(self, shape: ModelShape, plan: RunPlan) -> None:
        self.shape = shape
        self.plan = plan
        outside, *blocks = blocks_of(shape, plan)
        self.outside = Weights(plan, outside.tensors)
        places = {prefix: block.tensors for block in blocks for prefix in block.prefixes}
        prefixes = [f"{shape.encoder_prefix}.{i}" for i in range(len(shape.encoder))]
        prefixes += [f"{shape.layer_prefix}.{i}" for i in range(len(shape.layers))]
        self.layers = tuple(Weights(plan, places[prefix]) for prefix in prefixes)

    def sweep(self, tape: Tape) -> Iterator[Weights]:
        """All weights, those outside of layers first, marked on the tape."""
        tape.enter_layer(OUTSIDE)
        yield self.outside
        encoders = len(self.shape.encoder)
        for index, weights in enumerate(self.layers):
            if index == encoders and encoders:
                tape.leave_layer()
            tape.enter_layer(index)
            yield weights
        tape.leave_layer()


def forward(
    tape: Tape, model: Model, batch: Batch, cache: Cache | None = None
) -> tuple[Tensor | None, Tensor]:
    """`LlamaForCausalLM.forward`: the loss (None in inference) and the logits, in the phases
    forward and loss."""
    shape, plan = model.shape, model.plan
    hidden = _backbone(tape, model, batch, cache)
    logits = _head(tape, model, hidden)
    if not plan.trains:
        return None, logits
    tape.phase(Phase.LOSS)
    sequences = batch.ids.elements // plan.sequence
    compute = causal_loss_4_48 if plan.loss == "stock-4.48" else causal_loss
    assert shape.head is not None
    return compute(tape, logits, batch.labels, sequences), logits


def _backbone(tape: Tape, model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """LlamaModel.forward and GPT2Model.forward: hidden states after the last norm."""
    shape, plan = model.shape, model.plan
    tokens = batch.ids.elements
    queries = tokens // plan.batch
    before = 0 if cache is None else cache.length
    state = Pass(shape, plan, plan.batch, queries, before + queries, cache=cache)
    inputs_embeds = _embed(tape, model, batch.ids)
    tape.operation("arange")
    plain = tape.new(queries, "int64", ARANGE)
    state.positions = tape.new(queries, "int64", ADD)
    del plain
    hidden = _positions(tape, model, inputs_embeds, state)
    _masks(tape, state, inputs_embeds.dtype, batch.padding)
    hidden = dropout(tape, hidden, shape.embedding_dropout)
    if shape.rotary_dims:
        state.tables = (tables(tape, queries, shape.rotary_dims, hidden.dtype),)
    for index, layer in enumerate(shape.layers):
        tape.enter_layer(index)
        run = partial(run_layer, tape, model.layers[index], layer, state)
        hidden = checkpoint(tape, run, hidden) if plan.checkpointing else run(hidden)
    tape.leave_layer()
    if cache is not None:
        cache.length += queries
    if shape.final_norm is not None:
        hidden = normalize(tape, model.outside, shape.final_norm, hidden)
    return hidden


def _embed(tape: Tape, model: Model, ids: Tensor) -> Tensor:
    """The token embedding. With checkpointing its output is made to need a gradient
    (enable_input_require_grads, which transformers 5 always calls then)."""
    spec = model.shape.embeddings[0]
    tape.path = spec.name
    embedded = embedding(tape, model.outside[f"{spec.name}.weight"], ids, spec.columns)
    if model.plan.checkpointing and not embedded.requires_grad:
        embedded.requires_grad = True
    tape.path = ""
    return scale(tape, embedded) if model.shape.embedding_scale else embedded


def _positions(tape: Tape, model: Model, hidden: Tensor, state: Pass) -> Tensor:
    """Adds learned positions, where the model has them."""
    if len(model.shape.embeddings) < 2:
        return hidden
    spec = model.shape.embeddings[1]
    assert state.positions is not None
    tape.path = spec.name
    learned = embedding(tape, model.outside[f"{spec.name}.weight"], state.positions, spec.columns)
    tape.path = ""
    return add(tape, hidden, learned)


def _masks(tape: Tape, state: Pass, dtype: str, padding: Tensor | None) -> None:
    """The masks that the kinds of layers need."""
    windows = {
        layer.attention.window
        for layer in state.shape.layers
        if isinstance(layer.attention, Attention)
    }
    if None in windows or not windows:
        state.mask = causal_mask(tape, state, dtype, padding, None)
    for window in windows - {None}:
        state.window_mask = causal_mask(tape, state, dtype, padding, window)


def _head(tape: Tape, model: Model, hidden: Tensor) -> Tensor:
    """Logits of all tokens; under inference of the last of each sequence alone (generate)."""
    spec = model.shape.head
    assert spec is not None
    if not model.plan.trains:
        hidden = tape.alias(hidden, model.plan.batch * spec.inputs)
    if model.shape.tied:
        table = model.outside[f"{model.shape.embeddings[0].name}.weight"]
        tape.path = spec.name
        bias = model.outside.find(f"{spec.name}.bias")
        logits = linear(tape, hidden, table, bias, spec.inputs, spec.outputs, LOGITS)
        tape.path = ""
    else:
        logits = project(tape, model.outside, spec, hidden, LOGITS)
    return scale(tape, logits) if model.shape.logit_scale else logits
