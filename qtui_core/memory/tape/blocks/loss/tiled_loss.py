"""The loss by tiles of logits (TRL 1.15 and 1.16, trl/kernels/chunked_logprob.py,
ChunkedLogProbFunction, as `add_fused_lm_head` of trl/trainer/utils.py calls it on a GPU): one
autograd function that keeps hidden states and recomputes each tile in its backward pass."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.tape.blocks.loss.chunked_loss import rows_of
from qtui_core.memory.tape.operations.pointwise import scale
from qtui_core.memory.tape.operations.reductions import total
from qtui_core.memory.tape.operations.views import part
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

#: Tokens and vocabulary entries of a tile (TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE). The
#: buffer has this width even if the vocabulary is smaller.
TILE_TOKENS: Final = 4096
TILE_WORDS: Final = 32768

TILE: Final = Label("logits of a tile", Component.LOSS)
CAST: Final = Label("operand of a tile", Component.LOSS)
INDICES: Final = Label("nonzero", Component.LOSS)
LABELS: Final = Label("labels with a token", Component.LOSS)
STATISTICS: Final = Label("statistics of tokens", Component.LOSS)
INPUT_GRADIENT: Final = Label("gradient of the head's input", Component.LOSS)
TABLE_GRADIENT: Final = Label("gradient of the head", Component.GRADIENTS)
#: Numbers per token: maximum, sum of exponentials, its weighted sum, two more sums, the largest
#: logit before the label, the logit of the label.
_STATISTICS: Final = 7


def tiled_loss(
    tape: Tape, shape: ModelShape, hidden: Tensor, table: Tensor, labels: Tensor, batch: int
) -> Tensor:
    """The loss of hidden states `[batch, sequence, hidden]` under the head `table` `[vocabulary,
    hidden]`. Tokens without a label would be left out; all except the last of each sequence are
    assumed to have one. The few numbers that are kept of each token are counted, except copies of
    them in the places of tokens without a label."""
    tokens = labels.elements - batch
    tape.operation("ne")
    mask = tape.new(tokens, "bool", LABELS)
    places = tape.new(2 * tokens, "int64", INDICES)
    rows = rows_of(tape, part(tape, hidden, tokens * shape.hidden), places)
    del places
    targets = tape.new(tokens, "int64", LABELS)
    likely = _log_probabilities(tape, rows, table, targets, shape.hidden)
    del rows, targets
    loss = scale(tape, total(tape, likely, 1))
    del mask
    return loss


def _log_probabilities(
    tape: Tape, rows: Tensor, table: Tensor, targets: Tensor, width: int
) -> Tensor:
    """ChunkedLogProbFunction: the log-probabilities of the labels, `[tokens]`."""
    tokens = targets.elements
    computed = tape.autocast or rows.dtype

    def backward(gradient: Tensor) -> Gradients:
        # Sums are made in float32, and rounded once after all tiles have been added.
        of_rows = tape.new(rows.elements, "fp32", INPUT_GRADIENT)
        of_table = tape.new(table.elements, "fp32", TABLE_GRADIENT) if trained else None
        tile = tape.new(min(tokens, TILE_TOKENS) * TILE_WORDS, computed, TILE)
        operands = _operands(tape, rows, table, computed, width, keeps=True)
        given = tape.to(of_rows, rows.dtype, INPUT_GRADIENT)
        given_table = None if of_table is None else tape.to(of_table, table.dtype, TABLE_GRADIENT)
        del tile, operands
        return given, given_table

    trained = table.requires_grad
    node = tape.node("ChunkedLogProbFunction", (rows, table), backward)
    statistics = [tape.new(tokens, "fp32", STATISTICS) for _ in range(_STATISTICS)]
    tile = tape.new(min(tokens, TILE_TOKENS) * TILE_WORDS, computed, TILE)
    operands = _operands(tape, rows, table, computed, width, keeps=False)
    logarithm = tape.new(tokens, "fp32", STATISTICS)
    likely = tape.new(tokens, "fp32", STATISTICS)
    entropy = tape.new(tokens, "fp32", STATISTICS)
    tape.save(node, rows, table, targets, logarithm, entropy)
    del statistics, tile, operands
    return tape.output(node, likely)


def _operands(
    tape: Tape, rows: Tensor, table: Tensor, computed: str, width: int, *, keeps: bool
) -> list[Tensor]:
    """Copies of a tile of hidden states and of the head in the dtype of the computation, if it
    differs from theirs. A copy of hidden states lives until the next is made; a copy of the head
    does if a name `keeps` it. Returns those of the last tile."""
    held = []
    for x, most in ((rows, TILE_TOKENS), (table, TILE_WORDS)):
        if x.dtype == computed:
            continue
        count = x.elements // width
        copy = tape.new(min(count, most) * width, computed, CAST)
        if count > most and (x is rows or keeps):
            copy = tape.new(min(count - most, most) * width, computed, CAST)
        held.append(copy)
    return held
