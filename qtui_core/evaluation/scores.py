"""How far a distribution of the next token is from another, token by token. Needs torch.

As llama.cpp computes it (tools/perplexity/perplexity.cpp, `log_softmax` with base log
probabilities) with two differences: it keeps the original's log probabilities in 16 bits, and
leaves out tokens of the vocabulary less likely than e^-16. Here both distributions are exact, in
float64, over the whole vocabulary. The most likely token is the first of those that are equally
likely, as there.
"""

from __future__ import annotations

import numpy as np
import torch

from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import Float32

#: Logits that are compared at a time, in float64: 32 MiB.
_PIECE = 1 << 22


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Of each token, all `[windows, scored]`.

    Attributes:
        loss: its cross entropy -log q, nats, float32.
        divergence: KL(p || q) = sum of p (log p - log q) over the vocabulary, nats, float32, where
            p is the original's distribution; zeros for the original itself.
        agreement: whether p and q have the same most likely token, uint8.
    """

    loss: Float32
    divergence: Float32
    agreement: np.ndarray


def score(
    logits: torch.Tensor, original: torch.Tensor | None, targets: torch.Tensor
) -> TokenScores:
    """The scores of the logits of a candidate.

    Args:
        logits: `[windows, scored, vocabulary]`.
        original: of the original, in the same shape; None if `logits` are.
        targets: the tokens that come next, int64 `[windows, scored]`, on the same device.
    """
    shape = tuple(targets.shape)
    q = logits.reshape(-1, logits.shape[-1])
    p = None if original is None else original.reshape(q.shape)
    next_ones = targets.reshape(-1)
    loss, divergence, agreement = [], [], []
    height = max(1, _PIECE // q.shape[1])
    for start in range(0, q.shape[0], height):
        rows = slice(start, start + height)
        log_q = torch.log_softmax(q[rows].double(), -1)
        loss.append(-log_q.gather(1, next_ones[rows, None])[:, 0])
        if p is None:
            divergence.append(torch.zeros_like(loss[-1]))
            agreement.append(torch.ones_like(next_ones[rows], dtype=torch.bool))
            continue
        log_p = torch.log_softmax(p[rows].double(), -1)
        terms = log_p.exp() * (log_p - log_q)
        # A token that the original never gives counts nothing, whatever q says of it.
        whole = torch.where(log_p == -torch.inf, 0.0, terms).sum(-1)
        divergence.append(whole.clamp(min=0.0))  # rounding leaves some at -1e-17
        agreement.append(p[rows].argmax(-1) == q[rows].argmax(-1))

    def joined(parts: list[torch.Tensor], dtype: torch.dtype) -> np.ndarray:
        return torch.cat(parts).to(dtype).cpu().numpy().reshape(shape)

    return TokenScores(
        joined(loss, torch.float32),
        joined(divergence, torch.float32),
        joined(agreement, torch.uint8),
    )
