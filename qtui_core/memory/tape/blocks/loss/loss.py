"""The head and the loss, by `RunPlan.loss`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.operations.fused import cross_entropy_in_place
from qtui_core.memory.tape.operations.loss import cross_entropy
from qtui_core.memory.tape.operations.pointwise import clone
from qtui_core.memory.tape.operations.views import part
from qtui_core.memory.tape.tape import Tape, Tensor

CrossEntropy = Callable[[Tape, Tensor, Tensor], Tensor]

LOGITS: Final = Label("logits", Component.LOSS)
UPCAST: Final = Label("logits in float32", Component.LOSS)
LABELS: Final = Label("labels", Component.INPUTS)


def causal_loss(tape: Tape, logits: Tensor, labels: Tensor, batch: int) -> Tensor:
    """ForCausalLMLoss of transformers 5: logits in float32, labels padded and shifted."""
    logits = tape.to(logits, "fp32", UPCAST)
    tape.operation("constant_pad_nd")
    tokens = labels.elements
    labels = tape.new(tokens + batch, "int64", LABELS)
    shifted = tape.new(tokens, "int64", LABELS)
    return cross_entropy(tape, logits, shifted)


def causal_loss_4_48(
    tape: Tape, logits: Tensor, labels: Tensor, batch: int, entropy: CrossEntropy = cross_entropy
) -> Tensor:
    """ForCausalLMLoss of transformers 4.48: in addition, all logits except the last of each
    sequence are copied to be contiguous."""
    logits = tape.to(logits, "fp32", UPCAST)
    tokens = labels.elements
    vocabulary = logits.elements // tokens
    kept = tokens - batch
    shifted_logits = clone(tape, part(tape, logits, kept * vocabulary))
    tape.operation("clone")
    shifted = tape.new(kept, "int64", LABELS)
    return entropy(tape, shifted_logits, shifted)


#: The loss of transformers 4 with Unsloth's cross entropy, from logits of any dtype
#: (FastForCausalLMLoss of fms-acceleration).
loss_in_place: Final = partial(causal_loss_4_48, entropy=cross_entropy_in_place)


def plain_loss(tape: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of BertForMaskedLM and T5ForConditionalGeneration: logits keep their dtype, labels
    are not shifted."""
    return cross_entropy(tape, logits, labels)


#: Losses from logits by `RunPlan.loss`, except that of the installed transformers.
LOSSES: Final[dict[str, Callable[[Tape, Tensor, Tensor, int], Tensor]]] = {
    "stock-4.48": causal_loss_4_48,
    "in-place": loss_in_place,
    "in-place-4.48": loss_in_place,
}
