"""Losses that replace the loss of a model: that of transformers 4.48, and the loss by tiles of
logits, each of some tokens and some words of the vocabulary, whose gradients are summed in float32.

What the tiled loss keeps, in which dtypes and for how long, is the same as in TRL 1.15 and 1.16 on
a GPU (trl/kernels/chunked_logprob.py), which the estimate of a plan with `--loss tiled` assumes
(qtui_core.memory.tape.blocks.losses). TRL reduces a tile in one Triton kernel; here torch reduces a
few rows of it at a time, and on a CPU multiplies a few rows and columns at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from transformers.utils import ModelOutput

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.tape.blocks.losses import TILE_TOKENS, TILE_WORDS

UNLABELLED: Final = -100
#: The number of float32 logits that are reduced at a time: 128 KiB, a row of a tile.
_FOLDED: Final = 1 << 15
#: Rows of a product on a CPU, and elements of both factors, that are cast to float32 at a time:
#: 512 KiB.
_ROWS: Final = 512
_CAST: Final = 1 << 17


@dataclass
class TiledOutput(ModelOutput):
    """The output of a forward pass without logits: the loss, the share of tokens predicted
    correctly, and the mean entropy of the predictions in nats."""

    loss: torch.Tensor | None = None
    accuracy: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


class TiledLogProbabilities(torch.autograd.Function):
    """Returns for each token: the log probability of its target, the entropy of the prediction in
    nats (without a gradient), and whether the target has the largest logit; of equal logits the
    first one counts as the largest.

    Arguments of `apply`: `hidden` `[tokens, width]`, `weight` `[vocabulary, width]`, `bias`
    `[vocabulary]` or None, `targets` int64 `[tokens]`, and the scale and softcap of the logits; the
    softcap may be None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
        softcap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        kind = hidden.device.type
        autocast = torch.is_autocast_enabled(kind)
        ctx.computed = torch.get_autocast_dtype(kind) if autocast else hidden.dtype
        ctx.scale, ctx.softcap = scale, softcap
        tokens = len(hidden)
        greatest = hidden.new_full((tokens,), float("-inf"), dtype=torch.float32)
        powers, weighted = torch.zeros_like(greatest), torch.zeros_like(greatest)
        of_target, best = torch.zeros_like(greatest), torch.zeros_like(targets)
        with torch.autocast(kind, enabled=False):
            for rows, words, tile, _, _ in _tiles(hidden, weight, bias, ctx.computed):
                for some in _slices(len(tile), _FOLDED // tile.shape[1]):
                    at = slice(rows.start + some.start, rows.start + some.stop)
                    kept = (t[at] for t in (greatest, powers, weighted, of_target, best))
                    _fold(_logits(tile[some], scale, softcap)[0], targets[at], words, *kept)
        logarithm = greatest + powers.log()
        entropy = logarithm - weighted / powers
        ctx.save_for_backward(hidden, weight, bias, targets, logarithm)
        right = best == targets
        ctx.mark_non_differentiable(entropy, right)
        return of_target - logarithm, entropy, right

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * 6
        hidden, weight, bias, targets, logarithm = ctx.saved_tensors
        of_hidden, of_weight, of_bias = (
            torch.zeros_like(tensor, dtype=torch.float32) if asks else None
            for tensor, asks in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        gradient = gradient.float()
        with torch.autocast(hidden.device.type, enabled=False):
            for rows, words, tile, taken, part in _tiles(hidden, weight, bias, ctx.computed):
                for some in _slices(len(tile), _FOLDED // tile.shape[1]):
                    at = slice(rows.start + some.start, rows.start + some.stop)
                    logits, slope = _logits(tile[some], ctx.scale, ctx.softcap)
                    share = logits.sub_(logarithm[at, None]).exp_().neg_()
                    inside, place = _places(targets[at], words)
                    share.scatter_add_(1, place, inside.to(share.dtype))
                    share.mul_(gradient[at, None]).mul_(ctx.scale)
                    tile[some] = share if slope is None else share.mul_(slope)
                if of_hidden is not None:
                    _add_product(of_hidden[rows], tile, part)
                if of_weight is not None:
                    _add_product(of_weight[words], tile.t(), taken)
                if of_bias is not None:
                    of_bias[words] += tile.sum(0, dtype=torch.float32)
            pairs = ((of_hidden, hidden), (of_weight, weight), (of_bias, bias))
            given = [None if total is None else total.to(one.dtype) for total, one in pairs]
        return (*given, None, None, None)


def _tiles(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, computed: torch.dtype
) -> Iterator[tuple[slice, slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(tokens, words, logits before scale and softcap, hidden states of the tokens, rows of the
    head) of each tile. The logits of all tiles are computed in one buffer."""
    tokens, words = len(hidden), len(weight)
    buffer = hidden.new_empty((min(tokens, TILE_TOKENS), TILE_WORDS), dtype=computed)
    for start in range(0, tokens, TILE_TOKENS):
        rows = slice(start, min(start + TILE_TOKENS, tokens))
        taken = hidden[rows].to(computed)
        for first in range(0, words, TILE_WORDS):
            columns = slice(first, min(first + TILE_WORDS, words))
            part = weight[columns].to(computed)
            tile = buffer[: len(taken), : len(part)]
            torch.mm(taken, part.t(), out=tile)
            if bias is not None:
                tile.add_(bias[columns].to(computed))
            yield rows, columns, tile, taken, part


def _slices(count: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` rows, at least one."""
    step = max(1, step)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _logits(
    projected: torch.Tensor, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits in float32, in a storage of their own, and the derivative of the softcap, None
    without one."""
    logits = projected.to(torch.float32, copy=True).mul_(scale)
    if softcap is None:
        return logits, None
    bent = logits.div_(softcap).tanh_()
    return bent * softcap, 1 - bent * bent


def _places(targets: torch.Tensor, words: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """For each target, `[rows, 1]`: whether it is among these words, and its place there (0 if it
    is not)."""
    inside = (targets >= words.start) & (targets < words.stop)
    return inside[:, None], torch.where(inside, targets - words.start, 0)[:, None]


def _fold(logits: torch.Tensor, targets: torch.Tensor, words: slice, *kept: torch.Tensor) -> None:
    """Adds the logits of some words to the running statistics of their rows: the greatest logit,
    the sum of powers, that of powers times logits, the target's logit, and the best word."""
    greatest, powers, weighted, of_target, best = kept
    top, where = logits.max(-1)
    inside, place = _places(targets, words)
    of_target += torch.where(inside, logits.gather(1, place), 0.0)[:, 0]
    best.copy_(torch.where(top > greatest, where + words.start, best))
    top = torch.maximum(top, greatest)
    shrunk = (greatest - top).exp()
    shares = (logits - top[:, None]).exp_()
    powers.mul_(shrunk).add_(shares.sum(-1))
    weighted.mul_(shrunk).add_(shares.mul_(logits).sum(-1))
    greatest.copy_(top)


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """`total += a @ b` for a float32 total, without rounding the product first. A CPU has no such
    product of 16-bit factors, which are cast in parts."""
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        for rows in _slices(len(a), _ROWS):
            for inner in _slices(len(b), _CAST // (_ROWS + b.shape[1])):
                total[rows].addmm_(a[rows, inner].float(), b[inner].float())


def tiled_cross_entropy(
    hidden: torch.Tensor,
    head: nn.Linear,
    labels: torch.Tensor,
    scale: float | None = None,
    softcap: float | None = None,
) -> TiledOutput:
    """The mean cross entropy of the next token.

    Args:
        hidden: the head's input, `[batch, sequence, width]`.
        head: `[vocabulary, width]`, with or without a bias.
        labels: int64 `[batch, sequence]`; each is predicted from the hidden state before it; -100
            is ignored.
        scale, softcap: of the logits, if the model has them.
    """
    following = labels[:, 1:]
    valid = following != UNLABELLED
    likely, entropy, right = TiledLogProbabilities.apply(
        hidden[:, :-1][valid],
        head.weight,
        head.bias,
        following[valid],
        1.0 if scale is None else scale,
        softcap,
    )
    count = len(likely)
    return TiledOutput(-likely.sum() / count, right.sum() / count, entropy.sum() / count)


def set_loss(model: Any, plan: RunPlan) -> None:
    """Sets the loss of a causal model to that of a plan; with "stock" the model keeps its own.

    Raises UsageError for any other loss if the model does not predict the next token.
    """
    if plan.trains and plan.loss != "stock":
        _check_causal(model, plan.loss)
    if plan.loss == "tiled":
        use_tiled_loss(model)
    if plan.loss == "stock-4.48":
        model.loss_function = loss_of_4_48


def _check_causal(model: Any, loss: str) -> None:
    if model.config.is_encoder_decoder or not model.can_generate():
        raise UsageError(
            f"--loss {loss} is for models that predict the next token, and {type(model).__name__} "
            f"does not; use --loss stock."
        )


def loss_of_4_48(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any
) -> torch.Tensor:
    """The loss of transformers 4.48, from logits `[batch, sequence, vocabulary]`, which it casts to
    float32. It copies all but the last of each sequence and compares them with the labels one place
    later."""
    logits = logits.float()  # lives until this function returns, as in 4.48
    shifted = logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous()
    return functional.cross_entropy(shifted.view(-1, vocab_size), targets.view(-1))


def use_tiled_loss(model: Any) -> None:
    """Makes a causal model compute its loss from hidden states, without the logits of all tokens,
    if it receives labels.

    Raises UsageError for a model that is not causal, or whose head is not a matrix.
    """
    _check_causal(model, "tiled")
    head, config, decoder = model.get_output_embeddings(), model.config, model.base_model
    if not isinstance(head, nn.Linear):
        raise UsageError(
            f"--loss tiled multiplies by the matrix of the head, and that of "
            f"{type(model).__name__} is a {type(head).__name__}; use --loss stock."
        )
    scale = getattr(config, "logit_scale", None)  # Cohere multiplies by one, Granite divides
    if scale is None and (divisor := getattr(config, "logits_scaling", None)) is not None:
        scale = 1.0 / float(divisor)
    softcap = getattr(config, "final_logit_softcapping", None)
    plain = model.forward

    def forward(labels: torch.Tensor | None = None, **inputs: Any) -> Any:
        if labels is None:
            return plain(**inputs)
        hidden = decoder(**inputs).last_hidden_state
        return model.loss_function(hidden, head, labels, scale=scale, softcap=softcap)

    model.forward, model.loss_function = forward, tiled_cross_entropy
