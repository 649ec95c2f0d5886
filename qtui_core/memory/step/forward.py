"""Puts a model on the tape: its weights, and its forward pass with the loss."""

from __future__ import annotations

from dataclasses import replace

from qtui_core.memory.plan.choices import chunk_of, without_logits
from qtui_core.memory.replay.record import Phase
from qtui_core.memory.shape.model_shape import Linear, ModelShape, Norm
from qtui_core.memory.step.backbones.families import BACKBONES, decoder
from qtui_core.memory.step.model import Batch, Model
from qtui_core.memory.tape.blocks.attention.cache import Cache
from qtui_core.memory.tape.blocks.feedforward.activations import activation
from qtui_core.memory.tape.blocks.layers.parallel import gathered
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.loss.chunked_loss import chunked_loss
from qtui_core.memory.tape.blocks.loss.fused_loss import fused_loss
from qtui_core.memory.tape.blocks.loss.loss import LOGITS, LOSSES, UPCAST, causal_loss, plain_loss
from qtui_core.memory.tape.blocks.loss.tiled_loss import tiled_loss
from qtui_core.memory.tape.operations.pointwise import from_output, scale
from qtui_core.memory.tape.tape import Tape, Tensor


def forward(
    tape: Tape, model: Model, batch: Batch, cache: Cache | None = None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """`LlamaForCausalLM.forward`, in the phases forward and loss. Returns the loss, and what else
    its output holds: the logits (unless the loss is computed without them) and an encoder's output.
    In inference the loss is None; a pipeline stage without a head returns the hidden states that it
    sends on instead."""
    shape, plan = model.shape, model.plan
    if shape.encoder:
        return _sequence_to_sequence(tape, model, batch, cache)
    hidden = BACKBONES.get(shape.family, decoder)(tape, model, batch, cache)
    if plan.pipeline_parallel > 1 and shape.head is None:  # the next stage goes on
        return (hidden, ()) if plan.trains else (None, (hidden,))
    if plan.trains and without_logits(plan.loss) and _is_causal(shape):
        tape.phase(Phase.LOSS)
        return _loss_without_logits(tape, model, hidden, batch), ()
    logits = _head(tape, model, hidden)
    if not plan.trains:
        return None, (logits,)
    tape.phase(Phase.LOSS)
    sequences = batch.ids.elements // plan.sequence
    if shape.is_encoder:
        return plain_loss(tape, logits, batch.labels), (logits,)
    if plan.loss == "in-place":  # before 4.46 forward() itself casts logits to float32
        logits = tape.to(logits, "fp32", UPCAST)
    return LOSSES.get(plan.loss, causal_loss)(tape, logits, batch.labels, sequences), (logits,)


def _sequence_to_sequence(
    tape: Tape, model: Model, batch: Batch, cache: Cache | None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """T5ForConditionalGeneration.forward. Its intermediate results have names until it returns."""
    from qtui_core.memory.step.backbones.t5 import t5  # no other model needs its blocks

    encoded, _shifted, decoded = t5(tape, model, batch, cache)
    if model.shape.head_scale:
        scaled = scale(tape, decoded)
        logits = _head(tape, model, scaled)
    else:
        logits = _head(tape, model, decoded)
    if not model.plan.trains:
        return None, (logits, encoded)
    tape.phase(Phase.LOSS)
    return plain_loss(tape, logits, batch.labels), (logits, encoded)


def _is_causal(shape: ModelShape) -> bool:
    return not shape.is_encoder and not shape.encoder


def _loss_without_logits(tape: Tape, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
    """The losses that take the head's weight instead of its output."""
    shape, plan = model.shape, model.plan
    spec = shape.head
    assert spec is not None
    name = shape.embeddings[0].name if shape.tied else spec.name
    table = model.outside[f"{name}.weight"]
    bias = model.outside.find(shape.head_bias or f"{spec.name}.bias")
    sequences = batch.ids.elements // plan.sequence
    if plan.loss == "tiled":
        return tiled_loss(tape, shape, hidden, table, batch.labels, sequences)
    chunk = chunk_of(plan.loss)
    if chunk is None:
        return fused_loss(tape, hidden, table, batch.labels, sequences, spec.inputs)
    return chunked_loss(tape, shape, hidden, table, bias, batch.labels, sequences, chunk)


def _head(tape: Tape, model: Model, hidden: Tensor) -> Tensor:
    """Logits of all tokens; in inference only of the last token of each sequence (generate)."""
    shape = model.shape
    spec = shape.head
    assert spec is not None  # check_against refuses models without a head
    if shape.is_encoder:
        hidden = _transformed(tape, model, hidden)
    if not model.plan.trains and not shape.is_encoder:
        last = tape.alias(hidden, model.plan.batch * spec.inputs)
        # The last tokens of several sequences are not contiguous in memory.
        if model.plan.batch > 1 and last.elements < hidden.elements:
            spec = replace(spec, bias_apart=True)
        hidden = last
        del last
    table = f"{shape.embeddings[0].name}.weight" if shape.tied else ""
    own = model.outside.linear(spec, table, shape.head_bias)
    logits = project(tape, model.outside, spec, hidden, LOGITS, own)
    if spec.outputs < shape.vocabulary <= spec.outputs * model.plan.tensor_parallel:
        rows = logits.elements // spec.outputs
        logits = gathered(tape, logits, rows * shape.vocabulary, LOGITS)
    if model.shape.logit_softcap:
        logits = scale(tape, logits)
        logits = from_output(tape, "tanh", logits)
        logits = scale(tape, logits)
    return scale(tape, logits) if model.shape.logit_scale else logits


def _transformed(tape: Tape, model: Model, hidden: Tensor) -> Tensor:
    """BertPredictionHeadTransform.forward, and the same in RobertaLMHead."""
    dense, norm = model.shape.head_modules[:2]
    assert isinstance(dense, Linear)
    assert isinstance(norm, Norm)
    hidden = project(tape, model.outside, dense, hidden)
    hidden = activation(tape, model.shape.head_activation, hidden)
    return normalize(tape, model.outside, norm, hidden)
