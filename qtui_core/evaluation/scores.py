"""How far a distribution of the next token is from the original's, token by token. Needs torch.

As in llama.cpp (tools/perplexity/perplexity.cpp, `log_softmax` with base log probabilities), except
that llama.cpp stores the original's log probabilities in 16 bits and leaves out tokens less likely
than e^-16. Here both distributions are in float64 over the whole vocabulary. Of equally likely
tokens, the first counts as the most likely, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.figures import TOKEN_SCORES

#: The most logits that are compared at once, 32 MiB in float64.
_PIECE = 1 << 22

#: By the names of TOKEN_SCORES: `[windows, scored]`.
TokenScores = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class NextTokens:
    """Distributions of the next token, as float64 log probabilities `[tokens, vocabulary]`. Each
    row of TOKEN_SCORES has a method.

    Attributes:
        q, p: of the candidate and of the original; the same for the original itself.
        targets: the tokens that come next, int64 `[tokens]`.
    """

    q: torch.Tensor
    p: torch.Tensor
    targets: torch.Tensor

    def loss(self) -> torch.Tensor:
        """The cross entropy -log q of the next token, nats."""
        return -self.q.gather(1, self.targets[:, None])[:, 0]

    def divergence(self) -> torch.Tensor:
        """KL(p || q) = sum of p (log p - log q) over the vocabulary, nats."""
        if self.p is self.q:
            return torch.zeros_like(self.q[:, 0])
        terms = self.p.exp() * (self.p - self.q)
        # A token to which the original gives probability 0 counts nothing, whatever q is.
        whole = torch.where(self.p == -torch.inf, 0.0, terms).sum(-1)
        return whole.clamp(min=0.0)  # rounding leaves some at -1e-17

    def agreement(self) -> torch.Tensor:
        """Whether p and q have the same most likely token."""
        return self.p.argmax(-1) == self.q.argmax(-1)


def score(
    logits: torch.Tensor, original: torch.Tensor | None, targets: torch.Tensor
) -> TokenScores:
    """The scores of the logits of a candidate.

    Args:
        logits: `[windows, scored, vocabulary]`.
        original: of the original, in the same shape; None if `logits` are.
        targets: the tokens that come next, int64 `[windows, scored]`, on the same device.
    """
    q = logits.reshape(-1, logits.shape[-1])
    p = None if original is None else original.reshape(q.shape)
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in TOKEN_SCORES}
    height = max(1, _PIECE // q.shape[1])
    for start in range(0, q.shape[0], height):
        rows = slice(start, start + height)
        log_q = torch.log_softmax(q[rows].double(), -1)
        log_p = log_q if p is None else torch.log_softmax(p[rows].double(), -1)
        pair = NextTokens(log_q, log_p, targets.reshape(-1)[rows])
        for name, values in parts.items():
            values.append(getattr(pair, name)())
    return {
        name: torch.cat(values).cpu().numpy().astype(row.dtype).reshape(targets.shape)
        for (name, row), values in zip(TOKEN_SCORES.items(), parts.values(), strict=True)
    }
