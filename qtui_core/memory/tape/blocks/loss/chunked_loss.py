"""The loss by chunks of tokens, each a checkpoint, so that the logits of all tokens never exist at
once (TRL 1.9 to 1.12, trl/trainer/sft_trainer.py: _chunk, _chunked_cross_entropy_loss)."""

from __future__ import annotations

from functools import partial
from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.checkpointing import checkpoint, count_unheld
from qtui_core.memory.tape.operations.linear import linear
from qtui_core.memory.tape.operations.loss import log_softmax, nll_loss
from qtui_core.memory.tape.operations.pointwise import add, from_output, mul, neg, scale
from qtui_core.memory.tape.operations.reductions import total
from qtui_core.memory.tape.operations.views import part
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

CHUNK: Final = Label("logits of a chunk", Component.LOSS)
ROWS: Final = Label("index", Component.LOSS)
ROWS_BACKWARD: Final = Label("new_zeros", Component.LOSS)
LABELS: Final = Label("labels of a chunk", Component.LOSS)
COUNT: Final = Label("zeros", Component.LOSS)
FLAGS: Final = Label("eq", Component.LOSS)
#: Chunks that are recorded. All later chunks are alike, and what each leaves, a kilobyte compared
#: with the hidden states of its tokens, is left out.
_RECORDED: Final = 4096


def chunked_loss(
    tape: Tape,
    shape: ModelShape,
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    batch: int,
    chunk: int,
) -> Tensor:
    """The loss of hidden states `[batch, sequence, hidden]` under the head `table`, `chunk` tokens
    at a time. Tokens without a label would be left out; all except the last of each sequence are
    assumed to have one."""
    tokens = labels.elements - batch
    tape.operation("ne")
    valid = tape.new(tokens, "bool", FLAGS)
    correct, entropy = tape.new(1, "fp32", COUNT), tape.new(1, "fp32", COUNT)
    order = tape.new(tokens, "int64", LABELS)
    rows = rows_of(tape, part(tape, hidden, tokens * shape.hidden), order)
    ordered = tape.new(tokens, "int64", LABELS)
    loss = tape.new(1, "fp32", COUNT)
    for start in range(0, min(tokens, chunk * _RECORDED), chunk):
        count = min(chunk, tokens - start)
        taken = part(tape, rows, count * shape.hidden)
        run = partial(_chunk, tape, shape, table, bias, tape.alias(ordered, count))
        of_chunk = checkpoint(tape, run, taken)
        loss = add(tape, loss, of_chunk)
    del valid, correct, entropy
    return scale(tape, loss)


def _chunk(
    tape: Tape,
    shape: ModelShape,
    table: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    hidden: Tensor,
) -> Tensor:
    """Logits in float32, from a float32 copy of the whole head, their loss, and metrics."""
    tokens = hidden.elements // shape.hidden
    own_bias = None if bias is None else tape.to(bias, "fp32")
    hidden_32, table_32 = tape.to(hidden, "fp32"), tape.to(table, "fp32")
    logits = linear(tape, hidden_32, table_32, None, shape.hidden, shape.vocabulary, CHUNK)
    del hidden_32, table_32
    if own_bias is not None:
        logits = add(tape, logits, own_bias)
        del own_bias
    if shape.logit_scale:
        logits = scale(tape, logits)
    if shape.logit_softcap:
        logits = scale(tape, from_output(tape, "tanh", scale(tape, logits)))
    logarithms = log_softmax(tape, logits)
    loss = nll_loss(tape, logarithms, labels)
    _metrics(tape, logarithms, tokens)
    return loss


def _metrics(tape: Tape, logarithms: Tensor, tokens: int) -> None:
    """The correct guesses and the entropy: `-(p.exp() * p).sum(-1) * valid`. What the entropy's
    backward pass would need is freed before it could be used."""
    before, tape.grad = tape.grad, False
    tape.operation("argmax")
    guesses = tape.new(tokens, "int64", LABELS)
    del guesses
    probabilities = from_output(tape, "exp", logarithms)
    count_unheld(tape, 1)
    count_unheld(tape, 2)
    product = mul(tape, probabilities, logarithms)
    del probabilities
    entropy = total(tape, product, tokens)
    del product
    entropy = neg(tape, entropy)
    count_unheld(tape, 1)
    entropy = scale(tape, entropy)
    tape.grad = before


def rows_of(tape: Tape, x: Tensor, order: Tensor) -> Tensor:
    """`x[order]`: a copy. Its gradient is written into zeros of `x`'s size."""
    elements = x.elements

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, gradient.dtype, ROWS_BACKWARD),)

    node = tape.node("index", (x,), backward)
    tape.save(node, order)
    return tape.output(node, tape.new(elements, x.dtype, ROWS))
