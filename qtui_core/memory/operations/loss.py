"""Cross entropy."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.record import Component, Label
from qtui_core.memory.tape import Gradients, Tape, Tensor

LOG_SOFTMAX: Final = Label("_log_softmax", Component.LOSS)
LOG_SOFTMAX_BACKWARD: Final = Label("_log_softmax_backward_data", Component.LOSS)
NLL: Final = Label("nll_loss_forward", Component.LOSS)
NLL_BACKWARD: Final = Label("nll_loss_backward", Component.LOSS)


def cross_entropy(tape: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """`F.cross_entropy(logits, labels)`: the logarithms of the softmax, then the mean of those of
    the labels.

    Under autocast only the second is on the float32 list here: the first is given the type of the
    logits (cross_entropy_loss in aten/src/ATen/native/LossNLL.cpp)."""
    elements, dtype = logits.elements, logits.dtype

    def of_logits(gradient: Tensor) -> Gradients:
        return (tape.new(elements, dtype, LOG_SOFTMAX_BACKWARD),)

    node = tape.node("_log_softmax", (logits,), of_logits)
    logarithms = tape.new(elements, dtype, LOG_SOFTMAX)
    tape.save(node, logarithms)
    logarithms = tape.cast_high(tape.output(node, logarithms))
    averaged = logarithms.dtype

    def of_logarithms(gradient: Tensor) -> Gradients:
        return (tape.new(elements, averaged, NLL_BACKWARD),)

    node = tape.node("nll_loss_forward", (logarithms,), of_logarithms)
    tape.save(node, logarithms, labels)
    loss = tape.new(1, averaged, NLL)
    weight = tape.new(1, averaged, NLL)
    tape.save(node, weight)
    return tape.output(node, loss)
