"""The rows of an evaluation, from the parts that are done. Needs numpy.

Tokens of one window are correlated, so the standard error of a mean over tokens is computed from
the means of the windows: their sample standard deviation over the square root of their number.
Windows are apart in the text and count as independent. (llama.cpp treats all tokens as
independent.) Two candidates read the same windows, so the standard error of their difference is
computed from the differences of the windows.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.conclude import Comparisons, PairedDifference, conclude_evaluation
from qtui_core.evaluation.results import Evaluation, EvaluationBegun, EvaluationRow, PartScored

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The scores of a candidate, all `[windows, scored]`."""

    loss: Floats
    divergence: Floats
    agreement: Floats
    nbytes: int
    seconds: float


def summarize(begun: EvaluationBegun, parts: Sequence[PartScored], ended: str = "") -> Evaluation:
    """The result of the parts."""
    windows, rows, compared = compare_candidates(begun, parts)
    conclusion = conclude_evaluation(begun, windows, rows, compared, ended)
    return Evaluation(begun, windows, rows, conclusion, ended)


def compare_candidates(
    begun: EvaluationBegun, parts: Sequence[PartScored]
) -> tuple[int, tuple[EvaluationRow, ...], Comparisons]:
    """The windows that all candidates have read, the rows over these, and the difference of each
    two with finite divergences. Before there are such windows, the rows are those of the candidates
    that have read the first batch."""
    known = {(p.batch, p.candidate): p for p in parts if p.candidate < len(begun.candidates)}
    numbers = list(range(len(begun.candidates)))
    batches = [b for b in range(len(begun.batches)) if all((b, c) in known for c in numbers)]
    if not batches and (0, 0) in known:
        batches, numbers = [0], [c for c in numbers if (0, c) in known]
    windows = sum(begun.batches[b] for b in batches)
    if not batches:
        return 0, (), {}
    tokens = {c: _read(begun, [known[b, c] for b in batches]) for c in numbers}
    rows = tuple(_row(begun, number, found) for number, found in tokens.items())
    means = {row.name: tokens[c].divergence.mean(1) for c, row in zip(tokens, rows, strict=True)}
    compared = {
        (a.name, b.name): _compared(means[a.name], means[b.name])
        for a in rows[1:]
        for b in rows[1:]
        if a is not b and a.kl_mean is not None and b.kl_mean is not None
    }
    return windows, rows, compared


def _read(begun: EvaluationBegun, parts: Sequence[PartScored]) -> _Tokens:
    def values(name: str, dtype: str) -> Floats:
        found = [np.frombuffer(b64decode(getattr(part, name)), dtype) for part in parts]
        return np.concatenate(found).astype(np.float64).reshape(-1, begun.text.scored)

    loss = values("loss", "<f4")
    return _Tokens(
        loss,
        values("divergence", "<f4") if parts[0].candidate else np.zeros_like(loss),
        values("agreement", "|u1"),
        parts[-1].nbytes,
        sum(part.seconds for part in parts),
    )


def _row(begun: EvaluationBegun, number: int, found: _Tokens) -> EvaluationRow:
    candidate = begun.candidates[number]
    finite = np.isfinite(found.divergence) & np.isfinite(found.loss)
    whole = bool(finite.all())
    median, p999 = np.percentile(found.divergence, (50, 99.9)) if whole else (math.nan, math.nan)
    loss = float(found.loss.mean()) if whole else None
    return EvaluationRow(
        scheme=candidate.scheme,
        activations=candidate.activations,
        bits_per_parameter=8 * found.nbytes / begun.parameters if begun.parameters else 0.0,
        nbytes=found.nbytes,
        kl_mean=float(found.divergence.mean()) if whole else None,
        kl_stderr=standard_error(found.divergence.mean(1)) if whole else None,
        kl_median=float(median) if whole else None,
        kl_p999=float(p999) if whole else None,
        loss=loss,
        # A perplexity beyond e^700 overflows float64.
        perplexity=math.exp(loss) if loss is not None and loss < 700 else None,
        top1_agreement=float(found.agreement.mean()),
        nonfinite=int(finite.size - np.count_nonzero(finite)),
        seconds=found.seconds,
    )


def standard_error(means: Floats) -> float | None:
    """The standard error of the mean of the windows' means `[windows]`; None for one window."""
    if means.size < 2:
        return None
    return float(means.std(ddof=1) / math.sqrt(means.size))


def _compared(a: Floats, b: Floats) -> PairedDifference:
    difference = a - b
    return PairedDifference(float(difference.mean()), standard_error(difference))
