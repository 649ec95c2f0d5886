"""Puts a model on the tape: its weights, and its forward pass with the loss."""

from __future__ import annotations

from dataclasses import replace

from qtui_core.memory.plan.options import without_logits
from qtui_core.memory.replay.record import Phase
from qtui_core.memory.shape.model_shape import Linear, Norm
from qtui_core.memory.step.backbones import BACKBONES, Batch, Model, decoder
from qtui_core.memory.tape.blocks.linear import project
from qtui_core.memory.tape.blocks.losses import (
    LOGITS,
    LOSSES,
    UPCAST,
    causal_loss,
    fused_loss,
    tiled_loss,
)
from qtui_core.memory.tape.blocks.mlp import activation
from qtui_core.memory.tape.blocks.norms import normalize
from qtui_core.memory.tape.blocks.state import Cache
from qtui_core.memory.tape.kernels import cross_entropy
from qtui_core.memory.tape.operations import gathered
from qtui_core.memory.tape.tensors import SCALE, Tensor


def forward(
    model: Model, batch: Batch, cache: Cache | None = None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """`LlamaForCausalLM.forward`, in the phases forward and loss, under the autocast of the plan.
    Returns the loss, and what else its output holds: the logits, unless the loss is computed
    without them. In inference the loss is None; a pipeline stage without a head returns the hidden
    states that it sends on instead."""
    tape, plan = batch.ids.tape, model.plan
    tape.autocast = plan.autocast_dtype if plan.autocast else None
    output = _forward(model, batch, cache)
    tape.autocast, tape.casts = None, {}
    return output


def _forward(
    model: Model, batch: Batch, cache: Cache | None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    tape = batch.ids.tape
    shape, plan = model.shape, model.plan
    hidden = BACKBONES.get(shape.family, decoder)(model, batch, cache)
    if plan.pipeline_parallel > 1 and shape.head is None:  # the next stage goes on
        return (hidden, ()) if plan.trains else (None, (hidden,))
    if plan.trains and without_logits(plan.loss) and not shape.is_encoder:
        tape.phase(Phase.LOSS)
        return _loss_without_logits(model, hidden, batch), ()
    logits = _head(model, hidden)
    if not plan.trains:
        return None, (logits,)
    tape.phase(Phase.LOSS)
    sequences = batch.ids.elements // plan.sequence
    if shape.is_encoder:  # logits keep their dtype, labels are not shifted
        return cross_entropy(logits, batch.labels), (logits,)
    if plan.loss == "in-place":  # before 4.46 forward() itself casts logits to float32
        logits = logits.to("fp32", UPCAST)
    return LOSSES.get(plan.loss, causal_loss)(logits, batch.labels, sequences), (logits,)


def _loss_without_logits(model: Model, hidden: Tensor, batch: Batch) -> Tensor:
    """The losses that take the head's weight instead of its output."""
    shape, plan = model.shape, model.plan
    spec = shape.head
    assert spec is not None
    name = shape.embeddings[0].name if shape.tied else spec.name
    table = model.outside[f"{name}.weight"]
    sequences = batch.ids.elements // plan.sequence
    if plan.loss == "tiled":
        return tiled_loss(hidden, table, batch.labels, sequences, spec.inputs)
    return fused_loss(hidden, table, batch.labels, sequences, spec.inputs)


def _head(model: Model, hidden: Tensor) -> Tensor:
    """Logits of all tokens; in inference only of the last token of each sequence (generate)."""
    shape = model.shape
    spec = shape.head
    assert spec is not None  # check_against refuses models without a head
    if shape.is_encoder:
        hidden = _transformed(model, hidden)
    if not model.plan.trains and not shape.is_encoder:
        last = hidden.alias(model.plan.batch * spec.inputs)
        # The last tokens of several sequences are not contiguous in memory.
        if model.plan.batch > 1 and last.elements < hidden.elements:
            spec = replace(spec, bias_apart=True)
        hidden = last
        del last
    table = f"{shape.embeddings[0].name}.weight" if shape.tied else ""
    own = model.outside.linear(spec, table, shape.head_bias)
    logits = project(model.outside, spec, hidden, LOGITS, own)
    if spec.outputs < shape.vocabulary <= spec.outputs * model.plan.tensor_parallel:
        rows = logits.elements // spec.outputs
        logits = gathered(logits, rows * shape.vocabulary, LOGITS)
    if model.shape.logit_softcap:
        logits = logits * SCALE
        logits = logits.tanh()
        logits = logits * SCALE
    return logits * SCALE if model.shape.logit_scale else logits


def _transformed(model: Model, hidden: Tensor) -> Tensor:
    """BertPredictionHeadTransform.forward, and the same in RobertaLMHead."""
    dense, norm = model.shape.head_modules[:2]
    assert isinstance(dense, Linear)
    assert isinstance(norm, Norm)
    hidden = project(model.outside, dense, hidden)
    hidden = activation(model.shape.head_activation, hidden)
    return normalize(model.outside, norm, hidden)
