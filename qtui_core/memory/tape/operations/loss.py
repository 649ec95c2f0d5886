"""Cross entropy and its parts."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

LOG_SOFTMAX: Final = Label("_log_softmax", Component.LOSS)
LOG_SOFTMAX_BACKWARD: Final = Label("_log_softmax_backward_data", Component.LOSS)
NLL: Final = Label("nll_loss_forward", Component.LOSS)
NLL_BACKWARD: Final = Label("nll_loss_backward", Component.LOSS)


def cross_entropy(tape: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """`F.cross_entropy(logits, labels)`. Under autocast only its second part is cast to float32:
    the first gets the dtype of the logits (cross_entropy_loss in
    aten/src/ATen/native/LossNLL.cpp)."""
    return nll_loss(tape, tape.cast_high(_log_softmax(tape, logits)), labels)


def log_softmax(tape: Tape, logits: Tensor) -> Tensor:
    """`F.log_softmax(logits, dim=-1)`; saves its result. On autocast's float32 list."""
    return _log_softmax(tape, tape.cast_high(logits))


def _log_softmax(tape: Tape, logits: Tensor) -> Tensor:
    elements, dtype = logits.elements, logits.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, dtype, LOG_SOFTMAX_BACKWARD),)

    node = tape.node("_log_softmax", (logits,), backward)
    logarithms = tape.new(elements, dtype, LOG_SOFTMAX)
    tape.save(node, logarithms)
    return tape.output(node, logarithms)


def nll_loss(tape: Tape, logarithms: Tensor, labels: Tensor) -> Tensor:
    """`F.nll_loss(logarithms, labels)`: their mean or sum, one element, and the total weight."""
    elements, dtype = logarithms.elements, logarithms.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, dtype, NLL_BACKWARD),)

    node = tape.node("nll_loss_forward", (logarithms,), backward)
    tape.save(node, logarithms, labels)
    loss = tape.new(1, dtype, NLL)
    weight = tape.new(1, dtype, NLL)
    tape.save(node, weight)
    return tape.output(node, loss)
