"""The loss by chunks of tokens, so that the logits of all tokens never exist at once.

Operations, dtypes and order are those of TRL 1.9 to 1.12 (sft_trainer.py,
_chunked_cross_entropy_loss), which the estimate of a plan with `--loss chunked:N` assumes
(qtui_core.memory.tape.blocks.loss.chunked_loss). Each chunk is a checkpoint. Its logits are
computed in float32 from a float32 copy of the head, once in the forward pass and once more in the
backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

UNLABELLED: Final = -100


@dataclass
class ChunkedOutput(ModelOutput):
    """The output of a forward pass without logits: the loss, the share of tokens predicted
    correctly, and the mean entropy of the predictions in nats."""

    loss: torch.Tensor | None = None
    accuracy: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


def chunked_cross_entropy(
    hidden: torch.Tensor,
    head: nn.Linear,
    labels: torch.Tensor,
    chunk: int,
    scale: float | None = None,
    softcap: float | None = None,
) -> ChunkedOutput:
    """The mean cross entropy of the next token.

    Args:
        hidden: the head's input, `[batch, sequence, width]`.
        head: `[vocabulary, width]`, with or without a bias.
        labels: int64 `[batch, sequence]`; each is predicted from the hidden state before it; -100
            is ignored.
        chunk: tokens per chunk.
        scale, softcap: of the logits, if the model has them.
    """
    following = labels[:, 1:]
    valid = following != UNLABELLED
    rows, targets = hidden[:, :-1][valid], following[valid]
    loss = correct = entropy = torch.zeros((), dtype=torch.float32, device=hidden.device)
    one = partial(_chunk, head, scale, softcap)
    for start in range(0, len(targets), chunk):
        stop = start + chunk
        of_chunk, right, unsure = checkpoint(
            one, rows[start:stop], targets[start:stop], use_reentrant=False
        )
        loss, correct, entropy = loss + of_chunk, correct + right, entropy + unsure
    count = len(targets)
    return ChunkedOutput(loss / count, correct / count, entropy / count)


def _chunk(
    head: nn.Linear,
    scale: float | None,
    softcap: float | None,
    rows: torch.Tensor,
    targets: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums over a chunk: the loss, the correct predictions, the entropy."""
    with torch.autocast(rows.device.type, enabled=False):
        logits = functional.linear(rows.float(), head.weight.float())
        if head.bias is not None:
            logits = logits + head.bias.float()
        if scale is not None:
            logits = logits * scale
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        logarithms = functional.log_softmax(logits, dim=-1)
        loss = functional.nll_loss(logarithms, targets, reduction="sum")
        # The gradients of these two are not needed, but TRL enables gradients here, and a
        # checkpoint stops recomputing at the last tensor that is saved.
        told = targets != UNLABELLED
        correct = ((logarithms.argmax(-1) == targets) & told).sum()
        entropy = (-(logarithms.exp() * logarithms).sum(-1) * told).sum()
    return loss, correct, entropy.detach()
