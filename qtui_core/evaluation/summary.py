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

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.conclude import Comparisons, PairedDifference, conclude_evaluation
from qtui_core.evaluation.figures import FIGURES, TOKEN_SCORES
from qtui_core.evaluation.results import Evaluation, EvaluationBegun, EvaluationRow, PartScored

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The scores of a candidate by name, float64 `[windows, scored]`."""

    scores: Mapping[str, Floats]
    nbytes: int
    seconds: float

    @property
    def divergence(self) -> Floats:
        """Zeros for the original."""
        return self.scores.get("divergence", np.zeros_like(self.scores["loss"]))


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
    rows = tuple(_row(begun, number, tokens) for number in tokens)
    means = {row.name: tokens[c].divergence.mean(1) for c, row in zip(tokens, rows, strict=True)}
    compared = {
        (a.name, b.name): _compared(means[a.name], means[b.name])
        for a in rows[1:]
        for b in rows[1:]
        if a is not b and a.kl_mean is not None and b.kl_mean is not None
    }
    return windows, rows, compared


def _read(begun: EvaluationBegun, parts: Sequence[PartScored]) -> _Tokens:
    values: dict[str, list[npt.NDArray[Any]]] = {}
    for part in parts:
        for name, score, raw in part.scores():
            values.setdefault(name, []).append(np.frombuffer(raw, score.dtype))
    scored = begun.text.scored
    return _Tokens(
        {n: np.concatenate(v).astype(np.float64).reshape(-1, scored) for n, v in values.items()},
        parts[-1].nbytes,
        sum(part.seconds for part in parts),
    )


def _row(begun: EvaluationBegun, number: int, tokens: Mapping[int, _Tokens]) -> EvaluationRow:
    candidate, own = begun.candidates[number], tokens[number]
    finite = np.logical_and.reduce([np.isfinite(values) for values in own.scores.values()])
    whole = bool(finite.all())
    figures: dict[str, Any] = {}
    for figure in FIGURES:
        if figure.of is not None:
            score, how = figure.of
            values = own.divergence if score == "divergence" else own.scores.get(score)
            known = whole or TOKEN_SCORES[score].dtype == "|u1"
            figures[figure.name] = None if values is None or not known else _REDUCTIONS[how](values)
    loss, first = figures["loss"], tokens[0].scores["loss"].mean()
    return EvaluationRow(
        scheme=candidate.scheme,
        activations=candidate.activations,
        bits_per_parameter=8 * own.nbytes / begun.parameters if begun.parameters else 0.0,
        nbytes=own.nbytes,
        nonfinite=int(finite.size - np.count_nonzero(finite)),
        seconds=own.seconds,
        loss_change=None if loss is None or not math.isfinite(first) else loss - float(first),
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
