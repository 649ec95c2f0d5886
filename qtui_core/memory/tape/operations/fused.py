"""Kernels that overwrite their inputs, from Unsloth (which the fused-ops-and-kernels of
fms-acceleration use too) and Liger: norms, rotary embeddings, a gate and a cross entropy whose
gradients need no second tensor of the same size."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.tape import Buffer, Gradients, Tape, Tensor

NORM: Final = Label("fast_rms_layernorm")
SWIGLU: Final = Label("swiglu")
LOSSES: Final = Label("losses", Component.LOSS)
LOGSUMEXP: Final = Label("logsumexp", Component.LOSS)
COUNT: Final = Label("count_nonzero", Component.LOSS)

#: The most columns that one program of the cross-entropy kernel reads. Larger vocabularies are read
#: by several, each with its own log-sum-exp (MAX_FUSED_SIZE in unsloth/kernels/utils.py).
_WIDEST: Final = 65536


def rms_norm(tape: Tape, x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Fast_RMS_Layernorm (unsloth/kernels/rms_layernorm.py): saves its uncast input, and the
    reciprocal root mean square of each row in float32. Its input's gradient overwrites that of its
    output; the weight gets none."""
    node = tape.node("fast_rms_layernorm", (x,), _over)
    output = tape.new(x.elements, x.dtype, NORM)
    roots = tape.new(x.elements // size, "fp32", NORM)
    tape.save(node, x, weight, roots)
    return tape.output(node, output)


def rms_norm_trained(tape: Tape, x: Tensor, weight: Tensor, size: int) -> Tensor:
    """LigerRMSNormFunction (liger_kernel/ops/rms_norm.py), in place as in LigerRMSNorm: like
    `rms_norm`, but the weight gets a gradient. Partial sums of that, a float32 row for each
    multiprocessor, are not counted."""
    trained = weight.dtype if weight.requires_grad else None

    def backward(gradient: Tensor) -> Gradients:
        return gradient, tape.new(size, trained, NORM) if trained else None

    node = tape.node("LigerRMSNormFunction", (x, weight), backward)
    output = tape.new(x.elements, x.dtype, NORM)
    roots = tape.new(x.elements // size, "fp32", NORM)
    tape.save(node, x, weight, roots)
    return tape.output(node, output)


def silu_times(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """LigerSiLUMulFunction (liger_kernel/ops/swiglu.py): saves both factors, and overwrites them
    with their gradients."""
    elements, dtype = gate.elements, gate.dtype

    def backward(gradient: Tensor) -> Gradients:
        of_gate, of_up = tape.held
        return Tensor(elements, dtype, of_gate), Tensor(elements, dtype, of_up)

    node = tape.node("LigerSiLUMulFunction", (gate, up), backward)
    output = tape.new(elements, dtype, SWIGLU)
    tape.save(node, gate, up)
    return tape.output(node, output)


def rope(tape: Tape, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Fast_RoPE_Embedding (unsloth/kernels/rope_embedding.py): rotates in place, forward and
    backward. The tables are attributes of its context and live as long as the graph."""
    tables = cosines.buffer, sines.buffer

    def backward(gradient: Tensor, kept: tuple[Buffer, ...] = tables) -> Gradients:
        return (gradient,)

    node = tape.node("fast_rope_embedding", (x,), backward)
    return tape.output(node, Tensor(x.elements, x.dtype, x.buffer))


def cross_entropy_in_place(tape: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """Fast_CrossEntropyLoss (unsloth/kernels/cross_entropy_loss.py), and the mean of its losses:
    saves logits, labels and the log-sum-exp of each row; the gradient overwrites the logits."""
    elements, dtype = logits.elements, logits.dtype
    rows = labels.elements
    chunks = -(-(elements // rows) // _WIDEST)

    def backward(gradient: Tensor) -> Gradients:
        return (Tensor(elements, dtype, tape.held[0]),)

    node = tape.node("Fast_CrossEntropyLoss", (logits,), backward)
    losses = tape.new(rows, "fp32", LOSSES)
    logarithms = tape.new(rows * chunks, "fp32", LOGSUMEXP)
    if chunks > 1:
        logarithms = tape.new(rows, "fp32", LOGSUMEXP)
    tape.save(node, logits, logarithms, labels)
    losses = tape.output(node, losses)
    tape.operation("count_nonzero")
    labelled = tape.new(rows, "bool", COUNT)
    count = tape.new(1, "int64", COUNT)
    del labelled
    return _mean(tape, losses, count)


def _mean(tape: Tape, losses: Tensor, count: Tensor) -> Tensor:
    """`losses.sum() / count`."""
    rows = losses.elements

    def of_losses(gradient: Tensor) -> Gradients:
        return (tape.alias(gradient, rows),)

    def of_sum(gradient: Tensor) -> Gradients:
        return (tape.new(1, "fp32", LOSSES),)

    node = tape.node("sum", (losses,), of_losses)
    total = tape.output(node, tape.new(1, "fp32", LOSSES))
    node = tape.node("div", (total,), of_sum)
    tape.save(node, count)
    return tape.output(node, tape.new(1, "fp32", LOSSES))


def _over(gradient: Tensor) -> Gradients:
    return (gradient,)
