"""How far a distribution of the next token is from the original's, token by token. Needs torch.

As in llama.cpp (tools/perplexity/perplexity.cpp, `log_softmax` with base log probabilities), except
that llama.cpp stores the original's log probabilities in 16 bits and leaves out tokens less likely
than e^-16. Here both distributions are in float64 over the whole vocabulary. Of equally likely
tokens, the first counts as the most likely, as in llama.cpp.
"""

from __future__ import annotations

import numpy as np
import torch

from qtui_core.dataclass import dataclass
from qtui_core.quant.elements import Float32

#: The most logits that are compared at once, 32 MiB in float64.
_PIECE = 1 << 22


@dataclass(frozen=True, eq=False)
class TokenScores:
    """The scores of each token, all `[windows, scored]`.

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
        # A token to which the original gives probability 0 counts nothing, whatever q is.
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
