"""The sentence at the end of an evaluation: which candidate to take, and whether its lead may be
chance. Standard library only."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.results import EvaluationBegun, EvaluationRow
from qtui_core.quantities import phrase, plural

#: The most bits per parameter of a small candidate; 4 bits with scales are small.
SMALL_BITS = 5.0
#: By degrees of freedom (windows - 1): the number of standard errors that a mean difference exceeds
#: by chance once in a hundred times (two-sided quantiles of Student's t).
_CHANCE = (
    (1, 63.66), (2, 9.925), (3, 5.841), (4, 4.604), (5, 4.032), (6, 3.707), (7, 3.499), (8, 3.355),
    (9, 3.250), (10, 3.169), (12, 3.055), (15, 2.947), (20, 2.845), (30, 2.750), (60, 2.660),
)  # fmt: skip
#: The same for infinitely many windows.
_LIMIT = 2.576
#: A smaller candidate is worth mentioning if its divergence is at most this many times the least.
_NEARLY = 1.5
#: Below this many standard errors, the number of windows that would decide is not estimated.
_GUESS = 0.5
#: Changes of the loss below this are not given: a thousandth of a nat changes the perplexity by 0.1
#: %.
_SLIGHT = 1e-3


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
    start = ""
    if ended == "stopped":
        if len(rows) < 2:
            return (
                "Stopped before the first candidate had read a window, so nothing is known: run it "
                "again, or continue a recording with --resume."
            )
        count = len(begun.candidates) - 1
        some = f"{len(rows) - 1} of {count} candidates had read " if len(rows) <= count else ""
        start = f"Stopped after {some}{windows:,} of {windows_of(begun.text.windows)}. "
    elif len(rows) < 2:
        return "No candidate has read the text yet."
    finite = [row for row in rows[1:] if row.kl_mean is not None]
    broken = [row for row in rows[1:] if row.kl_mean is None]
    if rows[0].nonfinite:
        return f"{start}{broken_original(rows[0], windows * begun.text.scored)}"
    if broken:
        start += _broken(broken, windows * begun.text.scored) + (" " if finite else "")
    if not finite:
        return start.strip()
    weights = [row for row in finite if row.activations is None] or finite
    if len(weights) == 1:
        said = _alone(weights[0], rows[0], windows, begun)
        best = weights[0]
    else:
        said, best = _among(weights, windows, begun, compared)
    return f"{start}{said}{_inputs(best, finite, compared, windows)}"


def _broken(broken: Sequence[EvaluationRow], tokens: int) -> str:
    most = max(broken, key=lambda row: row.nonfinite)
    more = len(broken) - 1
    others = f", as {more} more {'does' if more == 1 else 'do'} for some" if more else ""
    advice = "its weights overflow or are not finite, so do not take it"
    return (
        f"{most.name} gives logits that are not finite for {most.nonfinite:,} of "
        f"{plural(tokens, 'token')}{others}: {advice}."
    )


def broken_original(original: EvaluationRow, tokens: int) -> str:
    return (
        f"The original itself gives logits that are not finite for {original.nonfinite:,} of "
        f"{plural(tokens, 'token')}, so no candidate can be held against it: look for the weights "
        f"that are not finite (qtui inspect counts them)."
    )


def _alone(
    row: EvaluationRow, original: EvaluationRow, windows: int, begun: EvaluationBegun
) -> str:
    """About the only candidate."""
    at = f"{row.name}, at {row.bits_per_parameter:.2f} bits per parameter,"
    if row.kl_mean == 0.0:
        return (
            f"{at} gives the original's distribution on all of "
            f"{plural(windows * begun.text.scored, 'token')}: it changes nothing that this text "
            f"shows."
        )
    change = (row.loss or 0.0) - (original.loss or 0.0)
    return (
        f"{at} is {_divergence(row)} from the original: the loss {_change(change)}, and "
        f"{_stay(row.top1_agreement):.1%} of the most likely tokens stay; name other schemes of as "
        f"many bits to see whether that is little."
    )


def _stay(share: float) -> float:
    """A share whose text says 100% only if it is all."""
    return share if share == 1 else min(share, 0.999)


def _change(loss: float) -> str:
    if abs(loss) < _SLIGHT:
        return f"changes by less than {_SLIGHT:g} nats"
    return f"{'rises' if loss > 0 else 'falls'} by {abs(loss):.3g} nats"


def _among(
    rows: Sequence[EvaluationRow], windows: int, begun: EvaluationBegun, compared: Comparisons
) -> tuple[str, EvaluationRow]:
    """Which of several candidates to take, and that candidate."""
    small = [row for row in rows if row.bits_per_parameter <= SMALL_BITS]
    chosen = small if small else list(rows)
    ranked = sorted(chosen, key=lambda row: (row.kl_mean or 0.0, row.nbytes))
    first = ranked[0]
    among = f"Of what takes {SMALL_BITS:.0f} bits per parameter or fewer, " if small else ""
    least = [row for row in ranked if row.kl_mean == first.kl_mean]
    if len(ranked) == 1:
        said = f"{first.name} alone takes {SMALL_BITS:.0f} bits or fewer: {figures_of(first)}"
        others = "; name others of as few bits to choose from"
        return f"{said}{_larger(first, rows)}{others}.", first
    if windows < 2:
        has = "have" if len(least) > 1 else "has"
        return (
            f"{among}{phrase([row.name for row in least])} {has} the least divergence, "
            f"{figures_of(first)}, but one window gives no standard error, so that may be chance: "
            f"read {'more --windows' if _more_there(begun, 1) else 'a longer --text'}.",
            first,
        )
    limit = beyond_chance(windows)
    second = ranked[1]
    ties = [row for row in ranked[1:] if compared[row.name, first.name].errors < limit]
    if ties:
        return _tied(first, ties, rows, windows, begun, compared)
    errors = compared[second.name, first.name].errors
    said = (
        f"{among}{first.name} has the least divergence, {figures_of(first)}, "
        f"{errors_apart(errors)} below {second.name} ({short_figures(second)}): take it"
    )
    return f"{said}{_smaller(first, ranked)}{_larger(first, rows)}.", first


def _tied(
    first: EvaluationRow,
    ties: Sequence[EvaluationRow],
    rows: Sequence[EvaluationRow],
    windows: int,
    begun: EvaluationBegun,
    compared: Comparisons,
) -> tuple[str, EvaluationRow]:
    """The sentence if the best candidate cannot be distinguished from others."""
    alike = [first, *ties]
    best = min(alike, key=lambda row: row.nbytes)
    names = phrase([row.name for row in alike])
    if all(row.kl_mean == first.kl_mean for row in alike):
        differ = f"have the same divergence of {_nats(first.kl_mean)} nats"
    else:
        farthest = max(compared[row.name, first.name].errors for row in ties)
        least = "at most " if len(ties) > 1 else ""
        differ = (
            f"cannot be told apart on {windows_of(windows)}: they differ by {least}{farthest:.1f} "
            f"standard errors ({short_figures(first)} and {short_figures(ties[-1])})"
        )
    same = min(row.nbytes for row in alike) == max(row.nbytes for row in alike)
    smallest = [row for row in alike if row.nbytes == best.nbytes]
    take = f"{best.name}, {'the' if len(smallest) == 1 else 'one of the'} smallest"
    if same:
        take = "either" if len(alike) == 2 else "any of them"
    take = f"take {take}{_more(first, ties, windows, begun, compared)}"
    larger = _larger(best, [row for row in rows if row is best or row not in alike])
    return f"{names} {differ}: {take}{larger}.", best


def _more(
    first: EvaluationRow,
    ties: Sequence[EvaluationRow],
    windows: int,
    begun: EvaluationBegun,
    compared: Comparisons,
) -> str:
    """How many windows would distinguish the best from the next, if the difference stays."""
    errors = compared[ties[0].name, first.name].errors
    if errors < _GUESS:
        return ""
    needed = math.ceil(1.1 * windows * (_LIMIT / errors) ** 2)
    rounded = max(windows + 1, round(needed, 2 - len(str(needed))))
    longer = "" if _more_there(begun, rounded - 1) else " of a longer text"
    return f", or decide with about {rounded:,} windows{longer}"


def _more_there(begun: EvaluationBegun, windows: int) -> bool:
    """Whether the text has more windows than these."""
    return begun.text.available // begun.text.window > windows


def _smaller(first: EvaluationRow, ranked: Sequence[EvaluationRow]) -> str:
    """A candidate that takes fewer bytes for a little more divergence."""
    least = (first.kl_mean or 0.0) * _NEARLY
    found = [
        r for r in ranked[1:] if r.nbytes < 0.98 * first.nbytes and (r.kl_mean or 0.0) <= least
    ]
    if not found:
        return ""
    row = min(found, key=lambda each: each.nbytes)
    return (
        f", or {row.name}, with {1 - row.nbytes / first.nbytes:.0%} fewer bytes, for "
        f"{_nats(row.kl_mean)}"
    )


def _larger(best: EvaluationRow, rows: Sequence[EvaluationRow]) -> str:
    """What the best of all candidates reaches with more bits."""
    top = min(rows, key=lambda row: (row.kl_mean or 0.0, row.nbytes))
    if top.nbytes <= best.nbytes or (top.kl_mean or 0.0) >= (best.kl_mean or 0.0):
        return ""
    return f"; with {top.bits_per_parameter:.2f} bits {top.name} comes to {_nats(top.kl_mean)}"


def _inputs(
    best: EvaluationRow, rows: Sequence[EvaluationRow], compared: Comparisons, windows: int
) -> str:
    """What quantizing the inputs of layers adds to the candidate that is recommended."""
    if best.activations is not None:
        return ""
    found = [row for row in rows if row.scheme == best.scheme and row.activations is not None]
    if not found:
        return ""
    row = min(found, key=lambda each: each.kl_mean or 0.0)
    more = compared[row.name, best.name]
    if more.difference == 0:
        how = "as its weights alone"
    elif more.errors < beyond_chance(windows):
        how = f"which {windows_of(windows)} cannot tell from chance"
    else:
        how = f"{errors_apart(more.errors)} {'more' if more.difference > 0 else 'less'}"
    comes = f"{best.scheme} comes to {_nats(row.kl_mean)}"
    return f" With its inputs in {row.activations}, {comes}, {how}."


def errors_apart(count: float) -> str:
    """A number of standard errors as text; beyond a hundred not exactly."""
    return f"{count:.1f} standard errors" if count < 100 else "over 100 standard errors"


def figures_of(row: EvaluationRow) -> str:
    return f"{_divergence(row)} at {row.bits_per_parameter:.2f} bits"


def _divergence(row: EvaluationRow) -> str:
    spread = "" if row.kl_stderr is None else f" ± {row.kl_stderr:.2g}"
    return f"{_nats(row.kl_mean)}{spread} nats a token"


def short_figures(row: EvaluationRow) -> str:
    return f"{_nats(row.kl_mean)} at {row.bits_per_parameter:.2f} bits"


def _nats(value: float | None) -> str:
    return f"{value or 0.0:.3g}"


def windows_of(count: int) -> str:
    return f"{count:,} window{'s' * (count != 1)}"
