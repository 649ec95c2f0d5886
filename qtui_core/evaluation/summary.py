"""The rows of an evaluation, from the parts that are done. Needs numpy.

Tokens of one window are correlated, so the standard error of a mean over tokens is computed from
the means of the windows: their sample standard deviation over the square root of their number.
Windows are apart in the text and count as independent. (llama.cpp treats all tokens as
independent.) Two candidates read the same windows, so the standard error of their difference is
computed from the differences of the windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.evaluation.conclude import Comparisons, PairedDifference, conclude_evaluation
from qtui_core.evaluation.figures import FIGURES, TOKEN_SCORES
from qtui_core.evaluation.results import Evaluation, EvaluationBegun, EvaluationRow, PartScored

Floats = npt.NDArray[np.float64]


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
    if not batches:
        return 0, (), {}
    own = {c: [known[b, c] for b in batches] for c in numbers}
    scores = {c: _scores(begun, read) for c, read in own.items()}
    first = float(scores[0]["loss"].mean())
    rows = tuple(_row(begun, c, read, scores[c], first) for c, read in own.items())
    means = {
        row.name: scores[c]["divergence"].mean(1)
        for c, row in zip(numbers, rows, strict=True)
        if row.kl_mean is not None and c
    }
    compared = {(a, b): _compared(means[a], means[b]) for a in means for b in means if a != b}
    return sum(begun.batches[b] for b in batches), rows, compared


def _scores(begun: EvaluationBegun, parts: Sequence[PartScored]) -> dict[str, Floats]:
    """By name, float64 `[windows, scored]`. The divergence of the original is zero."""
    read = [{n: np.frombuffer(raw, s.dtype) for n, s, raw in part.scores()} for part in parts]
    own = {  # the first part has the fewest: a recording from before a score lacks it
        n: np.concatenate([of[n] for of in read], dtype=np.float64).reshape(-1, begun.text.scored)
        for n in read[0]
    }
    return {"divergence": np.zeros_like(own["loss"]), **own}


def _row(
    begun: EvaluationBegun,
    number: int,
    parts: Sequence[PartScored],
    scores: Mapping[str, Floats],
    first: float,
) -> EvaluationRow:
    """`first`: the mean loss of the original."""
    candidate, nbytes = begun.candidates[number], parts[-1].nbytes
    finite = np.logical_and.reduce([np.isfinite(values) for values in scores.values()])
    figures: dict[str, Any] = {}
    for figure in FIGURES:
        if figure.of is not None:
            score, how = figure.of
            known = score in scores and (finite.all() or TOKEN_SCORES[score].dtype == "|u1")
            figures[figure.name] = _REDUCTIONS[how](scores[score]) if known else None
    loss = figures["loss"]
    return EvaluationRow(
        scheme=candidate.scheme,
        activations=candidate.activations,
        bits_per_parameter=8 * nbytes / begun.parameters if begun.parameters else 0.0,
        nbytes=nbytes,
        nonfinite=int(finite.size - np.count_nonzero(finite)),
        seconds=sum(part.seconds for part in parts),
        loss_change=None if loss is None or not math.isfinite(first) else loss - first,
        **figures,
    )


def _perplexity(loss: Floats) -> float | None:
    mean = float(loss.mean())
    return math.exp(mean) if mean < 700 else None  # beyond, it overflows float64


_REDUCTIONS: Mapping[str, Callable[[Floats], float | None]] = {
    "mean": lambda values: float(values.mean()),
    "stderr": lambda values: standard_error(values.mean(1)),
    "median": lambda values: float(np.percentile(values, 50)),
    "p999": lambda values: float(np.percentile(values, 99.9)),
    "perplexity": _perplexity,
}


def standard_error(means: Floats) -> float | None:
    """The standard error of the mean of the windows' means `[windows]`; None for one window."""
    if means.size < 2:
        return None
    return float(means.std(ddof=1) / math.sqrt(means.size))


def _compared(a: Floats, b: Floats) -> PairedDifference:
    difference = a - b
    return PairedDifference(float(difference.mean()), standard_error(difference))
