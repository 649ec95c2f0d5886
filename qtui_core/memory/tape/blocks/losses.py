"""The losses, by `RunPlan.loss`: from logits; in one kernel that keeps none (Liger,
liger_kernel/ops/fused_linear_cross_entropy.py); or by tiles of them (TRL 1.15 and 1.16,
trl/kernels/chunked_logprob.py, ChunkedLogProbFunction, as `add_fused_lm_head` of
trl/trainer/utils.py calls it on a GPU)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.operations import cross_entropy, cross_entropy_in_place
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import SCALE, Gradients, Tensor

CrossEntropy = Callable[[Tensor, Tensor], Tensor]

LOGITS: Final = Label("logits", Component.LOSS)
UPCAST: Final = Label("logits in float32", Component.LOSS)
LABELS: Final = Label("labels", Component.INPUTS)
INPUT_GRADIENT: Final = Label("gradient of the head's input", Component.LOSS)
TABLE_GRADIENT: Final = Label("gradient of the head", Component.GRADIENTS)


def causal_loss(logits: Tensor, labels: Tensor, batch: int) -> Tensor:
    """ForCausalLMLoss of transformers 5: logits in float32, labels padded and shifted."""
    logits = logits.to("fp32", UPCAST)
    _padded, shifted = shifted_labels(logits.tape, labels.elements, batch)
    return cross_entropy(logits, shifted)


def shifted_labels(tape: Tape, tokens: int, batch: int) -> tuple[Tensor, Tensor]:
    """int64 labels with one more at the end of each sequence, and all but the first of each, made
    contiguous: a view if there is only one sequence."""
    tape.operation("constant_pad_nd")
    padded = tape.new(tokens + batch, "int64", LABELS)
    return padded, padded.alias(tokens) if batch == 1 else tape.new(tokens, "int64", LABELS)


def causal_loss_4_48(
    logits: Tensor, labels: Tensor, batch: int, entropy: CrossEntropy = cross_entropy
) -> Tensor:
    """ForCausalLMLoss of transformers 4.48: all logits except the last of each sequence are made
    contiguous, and so are the labels, which copies those of several sequences."""
    tape = logits.tape
    logits = logits.to("fp32", UPCAST)
    tokens = labels.elements
    vocabulary = logits.elements // tokens
    kept = tokens - batch
    shifted_logits = logits.part(kept * vocabulary)
    if batch == 1:
        return entropy(shifted_logits, labels.alias(kept))
    shifted_logits = shifted_logits.clone()
    tape.operation("clone")
    return entropy(shifted_logits, tape.new(kept, "int64", LABELS))


#: The loss of transformers 4 with Unsloth's cross entropy, from logits of any dtype
#: (FastForCausalLMLoss of fms-acceleration).
_IN_PLACE: Final = partial(causal_loss_4_48, entropy=cross_entropy_in_place)
#: Losses from logits by `RunPlan.loss`.
LOSSES: Final[dict[str, Callable[[Tensor, Tensor, int], Tensor]]] = {
    "stock": causal_loss, "stock-4.48": causal_loss_4_48, "in-place": _IN_PLACE,
    "in-place-4.48": _IN_PLACE,
}  # fmt: skip


# ---------------------------------------------------------------------- without logits

#: Losses of tokens in one kernel, and the logits of the chunk that it works on.
EACH: Final = Label("losses", Component.LOSS)
CHUNK: Final = Label("logits of a chunk", Component.LOSS)


def fused_loss(hidden: Tensor, table: Tensor, labels: Tensor, batch: int, width: int) -> Tensor:
    """The loss of hidden states `[tokens, width]` under the head `table` `[vocabulary, width]`, in
    one kernel. Gradients are computed in the forward pass, one chunk at a time."""
    tape = hidden.tape
    tokens = hidden.elements // width
    vocabulary = table.elements // width
    chunk = fused_chunk(tokens, vocabulary, width)
    _labels = shifted_labels(tape, tokens, batch)
    # The gradients themselves are saved, and handed over in the backward pass.
    kept: list[Tensor | None] = []

    def backward(gradient: Tensor) -> Gradients:
        of_hidden, of_table = kept
        kept.clear()
        return of_hidden, of_table

    node = tape.node("LigerFusedLinearCrossEntropyFunction", (hidden, table), backward)
    of_hidden = tape.new(hidden.elements, hidden.dtype, INPUT_GRADIENT)
    of_table = None
    if table.requires_grad:
        of_table = tape.new(table.elements, table.dtype, TABLE_GRADIENT)
    _losses = tape.new(tokens, "fp32", EACH)
    _chunks(hidden.detach(), table.detach(), chunk, vocabulary, width)
    loss = tape.new(1, "fp32", EACH)
    if node is not None:
        kept += [of_hidden, of_table]
    return tape.output(node, loss)


def _chunks(hidden: Tensor, table: Tensor, chunk: int, vocabulary: int, width: int) -> None:
    """The temporaries of one chunk after the other; all chunks are alike. If dtypes differ under
    autocast, operands are cast for each product."""
    tape = hidden.tape
    before, tape.grad = tape.grad, False
    cast = tape.autocast is not None and hidden.dtype != tape.autocast
    if cast:
        of_chunk = tape.new(chunk * width, hidden.dtype, "mm").cast_low()
        of_table = table.cast_low()
        logits = tape.new(chunk * vocabulary, of_chunk.dtype, CHUNK)
        del of_table, of_chunk
        of_table = table.cast_low()
        tape.new(chunk * width, logits.dtype, "mm")
        del of_table, logits
    else:
        tape.new(chunk * vocabulary, hidden.dtype, CHUNK)
    tape.grad = before


def fused_chunk(tokens: int, vocabulary: int, hidden: int) -> int:
    """Tokens whose logits the kernel holds at a time: so few that the logits take about as much as
    the hidden states of all tokens, up to a power of two."""
    share = -(-tokens // -(-vocabulary // hidden))
    return min(tokens, 1 << (share - 1).bit_length())


#: Tokens and vocabulary entries of a tile (TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE). The
#: buffer has this width even if the vocabulary is smaller.
TILE_TOKENS: Final = 4096
TILE_WORDS: Final = 32768

TILE: Final = Label("logits of a tile", Component.LOSS)
OPERAND: Final = Label("operand of a tile", Component.LOSS)
STATISTICS: Final = Label("statistics of tokens", Component.LOSS)
LABELLED: Final = Label("labels with a token", Component.LOSS)
#: Numbers per token: maximum, sum of exponentials, its weighted sum, two more sums, the largest
#: logit before the label, the logit of the label.
_STATISTICS: Final = 7


def tiled_loss(hidden: Tensor, table: Tensor, labels: Tensor, batch: int, width: int) -> Tensor:
    """The loss of hidden states `[batch, sequence, width]` under the head `table` `[vocabulary,
    width]`, by tiles of logits: one autograd function that keeps hidden states and recomputes each
    tile in its backward pass. Tokens without a label would be left out; all except the last of each
    sequence are assumed to have one. The few numbers that are kept of each token are counted,
    except copies of them in the places of tokens without a label."""
    tape = hidden.tape
    tokens = labels.elements - batch
    tape.operation("ne")
    _mask = tape.new(tokens, "bool", LABELLED)
    places = tape.new(2 * tokens, "int64", Label("nonzero", Component.LOSS))
    size = tokens * width
    made, zeros = Label("index", Component.LOSS), Label("new_zeros", Component.LOSS)
    rows = hidden.part(size).op("index", zeros, own=True, saved=places, made=made)
    del places
    targets = tape.new(tokens, "int64", LABELLED)
    likely = _log_probabilities(rows, table, targets, width)
    del rows, targets
    return likely.total(1) * SCALE


def _log_probabilities(rows: Tensor, table: Tensor, targets: Tensor, width: int) -> Tensor:
    """ChunkedLogProbFunction: the log-probabilities of the labels, `[tokens]`."""
    tape = rows.tape
    tokens = targets.elements
    computed = tape.autocast or rows.dtype

    def backward(gradient: Tensor) -> Gradients:
        # Sums are made in float32, and rounded once after all tiles have been added.
        of_rows = tape.new(rows.elements, "fp32", INPUT_GRADIENT)
        of_table = tape.new(table.elements, "fp32", TABLE_GRADIENT) if trained else None
        tile = tape.new(min(tokens, TILE_TOKENS) * TILE_WORDS, computed, TILE)
        operands = _operands(rows, table, computed, width, keeps=True)
        given = of_rows.to(rows.dtype, INPUT_GRADIENT)
        given_table = None if of_table is None else of_table.to(table.dtype, TABLE_GRADIENT)
        del tile, operands
        return given, given_table

    trained = table.requires_grad
    node = tape.node("ChunkedLogProbFunction", (rows, table), backward)
    statistics = [tape.new(tokens, "fp32", STATISTICS) for _ in range(_STATISTICS)]
    tile = tape.new(min(tokens, TILE_TOKENS) * TILE_WORDS, computed, TILE)
    operands = _operands(rows, table, computed, width, keeps=False)
    logarithm = tape.new(tokens, "fp32", STATISTICS)
    likely = tape.new(tokens, "fp32", STATISTICS)
    entropy = tape.new(tokens, "fp32", STATISTICS)
    tape.save(node, rows, table, targets, logarithm, entropy)
    del statistics, tile, operands
    return tape.output(node, likely)


def _operands(
    rows: Tensor, table: Tensor, computed: str, width: int, *, keeps: bool
) -> list[Tensor]:
    """Copies of a tile of hidden states and of the head in the dtype of the computation, if it
    differs from theirs. A copy of hidden states lives until the next is made; a copy of the head
    does if a name `keeps` it. Returns those of the last tile."""
    tape = rows.tape
    held = []
    for x, most in ((rows, TILE_TOKENS), (table, TILE_WORDS)):
        if x.dtype == computed:
            continue
        count = x.elements // width
        copy = tape.new(min(count, most) * width, computed, OPERAND)
        if count > most and (x is rows or keeps):
            copy = tape.new(min(count - most, most) * width, computed, OPERAND)
        held.append(copy)
    return held
