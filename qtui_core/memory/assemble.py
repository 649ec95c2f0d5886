"""A model on the tape: its weights, and its forward pass with the loss."""

from __future__ import annotations

from qtui_core.memory.backbones import BACKBONES, decoder
from qtui_core.memory.blocks.linear import project
from qtui_core.memory.blocks.loss import LOGITS, causal_loss, causal_loss_4_48
from qtui_core.memory.blocks.state import Cache
from qtui_core.memory.model import Batch, Model
from qtui_core.memory.operations.linear import linear
from qtui_core.memory.operations.pointwise import scale
from qtui_core.memory.record import Phase
from qtui_core.memory.tape import Tape, Tensor


def forward(
    tape: Tape, model: Model, batch: Batch, cache: Cache | None = None
) -> tuple[Tensor | None, Tensor]:
    """`LlamaForCausalLM.forward`: the loss (None in inference) and the logits, in the phases
    forward and loss."""
    shape, plan = model.shape, model.plan
    hidden = BACKBONES.get(shape.family, decoder)(tape, model, batch, cache)
    logits = _head(tape, model, hidden)
    if not plan.trains:
        return None, logits
    tape.phase(Phase.LOSS)
    sequences = batch.ids.elements // plan.sequence
    compute = causal_loss_4_48 if plan.loss == "stock-4.48" else causal_loss
    assert shape.head is not None
    return compute(tape, logits, batch.labels, sequences), logits


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


__all__ = ["Batch", "Model", "forward"]
