"""The sentence at the end of an evaluation: which candidate to take, and whether its lead may be
chance. Standard library only."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.results import EvaluationBegun, EvaluationRow
from qtui_core.inspection.sentences import SMALL_BITS, recommended, small_ones
from qtui_core.quantities import phrase, plural

#: By degrees of freedom (windows - 1): the number of standard errors that a mean difference exceeds
#: by chance once in a hundred times (two-sided quantiles of Student's t).
_CHANCE = (
    (1, 63.66), (2, 9.925), (3, 5.841), (4, 4.604), (5, 4.032), (6, 3.707), (7, 3.499), (8, 3.355),
    (9, 3.250), (10, 3.169), (12, 3.055), (15, 2.947), (20, 2.845), (30, 2.750), (60, 2.660),
)  # fmt: skip
#: The same for infinitely many windows.
_LIMIT = 2.576


@dataclass(frozen=True)
class PairedDifference:
    """The mean divergence of one candidate minus that of another, in nats, and its standard error
    from the differences of the windows; None for one window."""

    difference: float
    stderr: float | None

    @property
    def errors(self) -> float:
        """The size of the difference in standard errors; 0 if it is 0 or the error is unknown,
        infinite if it is the same in every window."""
        if not self.difference or self.stderr is None:
            return 0.0
        return abs(self.difference) / self.stderr if self.stderr else math.inf


Comparisons = Mapping[tuple[str, str], PairedDifference]


def beyond_chance(windows: int) -> float:
    """The number of standard errors beyond which a difference over `windows` windows counts as
    real: chance exceeds it in less than 1 of 100 cases."""
    if windows < 2:
        return math.inf
    if windows - 1 > 2 * _CHANCE[-1][0]:
        return _LIMIT
    return _CHANCE[bisect_right(_CHANCE, (windows - 1, math.inf)) - 1][1]


def conclude_evaluation(
    begun: EvaluationBegun,
    windows: int,
    rows: Sequence[EvaluationRow],
    compared: Comparisons,
    ended: str,
) -> str:
    """What the rows mean and what to do.

    Args:
        windows: the number of windows that every row has read.
        rows: the original first.
        compared: (name, other name) -> the difference, for rows with finite divergences.
        ended: "done", "stopped", or "" while it runs.
    """
    parts, tokens = [], windows * begun.text.scored
    if len(rows) < 2 and ended != "stopped":
        return "No candidate has read the text yet."
    if len(rows) < 2:
        return (
            "Stopped before the first candidate had read a window, so nothing is known: run it "
            "again, or continue a recording with --resume."
        )
    if ended == "stopped":
        count = len(begun.candidates) - 1
        some = f"{len(rows) - 1} of {count} candidates had read " if len(rows) <= count else ""
        parts.append(f"Stopped after {some}{windows:,} of {windows_of(begun.text.windows)}.")
    if rows[0].nonfinite:
        return " ".join([*parts, broken_original(rows[0], tokens)])
    finite = [row for row in rows[1:] if row.kl_mean is not None]
    if broken := [row for row in rows[1:] if row.kl_mean is None]:
        most = max(broken, key=lambda row: row.nonfinite)
        others = plural(len(broken) - 1, "other does", "others do")
        more = f", and {others} so for some" if len(broken) > 1 else ""
        parts.append(
            f"{most.name} gives logits that are not finite for {most.nonfinite:,} of "
            f"{plural(tokens, 'token')}{more}: do not take it."
        )
    weights = [row for row in finite if row.activations is None] or finite
    if weights:
        several = len(weights) > 1
        parts.append(
            _among(weights, windows, begun, compared) if several else _alone(weights[0], tokens)
        )
    return " ".join(parts)


def broken_original(original: EvaluationRow, tokens: int) -> str:
    return (
        f"The original itself gives logits that are not finite for {original.nonfinite:,} of "
        f"{plural(tokens, 'token')}, so no candidate can be held against it: qtui inspect counts "
        f"the weights that are not finite."
    )


def _alone(row: EvaluationRow, tokens: int) -> str:
    at = f"{row.name}, at {row.bits_per_parameter:.2f} bits per parameter,"
    if row.kl_mean == 0.0:
        return (
            f"{at} gives the original's distribution on all of {plural(tokens, 'token')}: it "
            f"changes nothing that this text shows."
        )
    stay = row.top1_agreement if row.top1_agreement == 1 else min(row.top1_agreement, 0.999)
    return (
        f"{at} is {_divergence(row)} from the original, and {stay:.1%} of the most likely tokens "
        f"stay; name other schemes of as many bits to see whether that is little."
    )


def _among(
    rows: Sequence[EvaluationRow], windows: int, begun: EvaluationBegun, compared: Comparisons
) -> str:
    first = recommended(rows, _kl)
    others = sorted(
        (row for row in small_ones(rows) if row is not first), key=lambda r: (_kl(r), r.nbytes)
    )
    few = f"{SMALL_BITS:.0f} bits per parameter or fewer"
    among = f"Of what takes {few}, " if first.bits_per_parameter <= SMALL_BITS else ""
    if not others:
        return (
            f"{first.name} alone takes {few}: {figures_of(first)}; name others of as few bits to "
            f"choose from."
        )
    if windows < 2:
        least = [row.name for row in (first, *others) if row.kl_mean == first.kl_mean]
        longer = begun.text.available < 2 * begun.text.window
        return (
            f"{among}{phrase(least)} {'have' if len(least) > 1 else 'has'} the least divergence, "
            f"{figures_of(first)}, but one window gives no standard error: read "
            f"{'a longer --text' if longer else 'more --windows'}."
        )
    apart = [(compared[row.name, first.name].errors, row) for row in others]
    ties = [(errors, row) for errors, row in apart if errors < beyond_chance(windows)]
    if not ties:
        errors, second = apart[0]
        return (
            f"{among}{first.name} has the least divergence, {figures_of(first)}, "
            f"{errors_apart(errors)} below {second.name} ({short_figures(second)}): take it."
        )
    alike = [first, *(row for _, row in ties)]
    differ = f"have the same divergence of {_kl(first):.3g} nats"
    if any(row.kl_mean != first.kl_mean for row in alike):
        differ = (
            f"cannot be told apart on {windows_of(windows)}: they differ by "
            f"{'at most ' * (len(ties) > 1)}{max(errors for errors, _ in ties):.1f} standard "
            f"errors ({short_figures(first)} and {short_figures(alike[-1])})"
        )
    best = min(alike, key=lambda row: row.nbytes)
    smallest = sum(row.nbytes == best.nbytes for row in alike)
    take = f"{best.name}, {'the' if smallest == 1 else 'one of the'} smallest"
    if smallest == len(alike):
        take = "either" if len(alike) == 2 else "any of them"
    return f"{phrase([row.name for row in alike])} {differ}: take {take}."


def _kl(row: EvaluationRow) -> float:
    return row.kl_mean or 0.0


def errors_apart(count: float) -> str:
    """A number of standard errors as text; beyond a hundred not exactly."""
    return f"{count:.1f} standard errors" if count < 100 else "over 100 standard errors"


def figures_of(row: EvaluationRow) -> str:
    return f"{_divergence(row)} at {row.bits_per_parameter:.2f} bits"


def _divergence(row: EvaluationRow) -> str:
    spread = "" if row.kl_stderr is None else f" ± {row.kl_stderr:.2g}"
    return f"{_kl(row):.3g}{spread} nats a token"


def short_figures(row: EvaluationRow) -> str:
    return f"{_kl(row):.3g} at {row.bits_per_parameter:.2f} bits"


def windows_of(count: int) -> str:
    return f"{count:,} window{'s' * (count != 1)}"
