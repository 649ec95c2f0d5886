"""A text as windows of tokens, of which the last ones are scored. Needs numpy.

The definition is llama.cpp's (tools/perplexity/perplexity.cpp, `perplexity` and `kl_divergence`):
the text is tokenized as a whole and cut into windows of equal length. Each begins with the token
that begins a text, if the tokenizer has one. Of n tokens, the predictions at positions n/2 to n - 2
are scored, so that each has a context of at least n/2 tokens. Differences:

- By default a window has 256 tokens; llama.cpp has 512.
- The token that begins a text is put before n - 1 tokens of it; llama.cpp puts it in place of the
  first token of a window.
- If the text has more windows than requested, they are spread evenly over it; llama.cpp takes the
  first.
- `all` scores every token of a window except the first one of the text, as is usual in papers.
"""

from __future__ import annotations

import hashlib

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.evaluation.settings import LEAST_WINDOW, WINDOW, EvaluationSettings, usual_windows
from qtui_core.loading.tokens import Ids, Tokenizer, cut
from qtui_core.quantities import plural


@dataclass(frozen=True, eq=False)
class TextWindows:
    """Windows of one length.

    Attributes:
        ids: int64 `[windows, length]`.
        scored: how many tokens at the end of each window are scored.
        available: tokens of the whole text.
    """

    ids: Ids
    scored: int
    available: int

    @property
    def digest(self) -> str:
        """A short text that differs for other tokens or another number of scored ones."""
        of = f"{self.ids.shape} {self.scored} ".encode() + self.ids.astype("<i8").tobytes()
        return hashlib.sha256(of).hexdigest()[:16]


def cut_windows(
    ids: Ids,
    tokenizer: Tokenizer,
    settings: EvaluationSettings,
    limit: int | None,
    parameters: int,
) -> TextWindows:
    """The windows of a text.

    Args:
        ids: of the whole text, without special tokens.
        limit: the most tokens that the model takes at once; None if it does not say.

    Raises:
        UsageError: the text has fewer tokens than a window, a window more than the model takes, or
            the model takes too few.
    """
    prefix = tokenizer.prefix
    length = settings.window or min(WINDOW, limit or WINDOW, max(ids.size + prefix.size, 1))
    own = length - prefix.size
    if limit is not None and length > limit:
        raise UsageError(
            f"--window {length:,} is longer than the {limit:,} tokens that the model takes at once."
        )
    if own < LEAST_WINDOW or ids.size < own:
        takes = "" if limit is None else f", and the model takes {limit:,} at once"
        raise UsageError(
            f"The text has {plural(ids.size, 'token')}{takes}: an evaluation needs a window of "
            f"{max(own, LEAST_WINDOW):,} at least, and a few thousand tokens make a good one."
        )
    rows = cut(ids, own, settings.windows or usual_windows(length, parameters))
    begun = np.broadcast_to(prefix, (len(rows), prefix.size))
    scored = length - 1 - length // 2 if settings.scored == "half" else own - 1
    return TextWindows(np.concatenate([begun, rows], axis=1), scored, ids.size)
