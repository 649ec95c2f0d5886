"""Head and loss in one kernel that keeps no logits (Liger,
liger_kernel/ops/fused_linear_cross_entropy.py). Gradients are computed in the forward pass, one
chunk at a time."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

INPUT_GRADIENT: Final = Label("gradient of the head's input", Component.LOSS)
TABLE_GRADIENT: Final = Label("gradient of the head", Component.GRADIENTS)
LOSSES: Final = Label("losses", Component.LOSS)
CHUNK: Final = Label("logits of a chunk", Component.LOSS)
LABELS: Final = Label("labels", Component.INPUTS)
PRODUCT: Final = Label("mm")


def fused_loss(
    tape: Tape, hidden: Tensor, table: Tensor, labels: Tensor, batch: int, width: int
) -> Tensor:
    """The loss of hidden states `[tokens, width]` under the head `table` `[vocabulary, width]`."""
    tokens = hidden.elements // width
    vocabulary = table.elements // width
    chunk = fused_chunk(tokens, vocabulary, width)
    tape.operation("constant_pad_nd")
    padded = tape.new(tokens + batch, "int64", LABELS)
    shifted = tape.new(tokens, "int64", LABELS)
    # The gradients themselves are saved, and handed over in the backward pass.
    kept: list[Tensor | None] = []

    def backward(gradient: Tensor) -> Gradients:
        of_hidden, of_table = kept
        kept.clear()
        return of_hidden, of_table

    node = tape.node("LigerFusedLinearCrossEntropyFunction", (hidden, table), backward)
    of_hidden = tape.new(hidden.elements, hidden.dtype, INPUT_GRADIENT)
    of_table = (
        tape.new(table.elements, table.dtype, TABLE_GRADIENT) if table.requires_grad else None
    )
    losses = tape.new(tokens, "fp32", LOSSES)
    _chunks(tape, tape.detach(hidden), tape.detach(table), chunk, vocabulary, width)
    loss = tape.new(1, "fp32", LOSSES)
    if node is not None:
        kept += [of_hidden, of_table]
    del losses, padded, shifted
    return tape.output(node, loss)


def _chunks(
    tape: Tape, hidden: Tensor, table: Tensor, chunk: int, vocabulary: int, width: int
) -> None:
    """The temporaries of one chunk after the other; all chunks are alike. If dtypes differ under
    autocast, operands are cast for each product."""
    before, tape.grad = tape.grad, False
    cast = tape.autocast is not None and hidden.dtype != tape.autocast
    if cast:
        of_chunk = tape.cast_low(tape.new(chunk * width, hidden.dtype, PRODUCT))
        of_table = tape.cast_low(table)
        logits = tape.new(chunk * vocabulary, of_chunk.dtype, CHUNK)
        del of_table, of_chunk
        of_table = tape.cast_low(table)
        product = tape.new(chunk * width, logits.dtype, PRODUCT)
        del of_table, product, logits
    else:
        logits = tape.new(chunk * vocabulary, hidden.dtype, CHUNK)
        del logits
    tape.grad = before


def fused_chunk(tokens: int, vocabulary: int, hidden: int) -> int:
    """Tokens whose logits the kernel holds at a time: so few that the logits take about as much as
    the hidden states of all tokens, up to a power of two."""
    share = -(-tokens // -(-vocabulary // hidden))
    return min(tokens, 1 << (share - 1).bit_length())
