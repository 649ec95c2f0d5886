"""One sentence about a captured activation, and one about the output of its layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtui_core.activations.observers import Observed
from qtui_core.activations.output_error import OutputError
from qtui_core.activations.ranges import RANGED, RangeReport
from qtui_core.quant.columns import MIN_ROWS, STANDS_OUT, ColumnMagnitude, ColumnStatistics
from qtui_core.quantities import db_text, plural
from qtui_core.schemes.scheme import Family

#: Decibels: a fixed range this close to scales per token is good enough.
ENOUGH_DB = 1.0
#: Decibels: smaller differences are not worth mentioning.
SLIGHT_DB = 0.3
#: Decibels: of two errors one dominates if the other is smaller by this much.
DECIDES_DB = 6.0
#: Decibels: below this SQNR an activation has lost more than 4% of its energy to noise.
POOR_DB = 14.0
#: Decibels: below this SQNR nothing of an activation is left.
NOTHING_DB = 0.1
_MORE_BITS = "take a format with more bits"


def columns_of(observed: Observed) -> ColumnStatistics:
    """The channels of an activation as columns, over all tokens, not only the kept ones."""
    absmax, rms = observed.channel_absmax.astype(float), observed.second_moment**0.5
    medians = (float(np.median(side)) if side.size else 0.0 for side in (absmax, rms))
    return ColumnStatistics(observed.tokens, absmax, rms, *medians)


def standing_out(columns: ColumnStatistics) -> list[ColumnMagnitude]:
    """The channels whose absmax is more than STANDS_OUT times that of the median channel, the
    largest first. They widen a range per tensor."""
    return [c for c in columns.standing_out() if c.absmax_ratio > STANDS_OUT]


def channels_in_words(columns: ColumnStatistics) -> str:
    """Which channels stand out from the median channel, in words."""
    outstanding, total = standing_out(columns), columns.absmax.size
    if not columns.absmax.any():
        return "every value is zero"
    if not columns.median_absmax:
        hold = plural(int(np.count_nonzero(columns.absmax)), "channel holds", "channels hold")
        return f"{hold} all of its values other than zero, of {total:,} channels"
    if columns.rows < MIN_ROWS:
        return f"{plural(columns.rows, 'token')} cannot tell whether a channel stands out"
    if not outstanding:
        largest = columns.largest(1)[0]
        return f"no channel stands out (the largest is {largest.absmax_ratio:.2g}x the median)"
    times = f"{outstanding[0].absmax_ratio:.3g}x the median"
    if len(outstanding) == 1:
        return f"channel {outstanding[0].column:,} of {total:,} reaches {times}"
    return f"{len(outstanding):,} of {total:,} channels reach up to {times}"


def conclude_ranges(
    subject: str, columns: ColumnStatistics, reports: Sequence[RangeReport], nonfinite: int = 0
) -> str:
    """What calibration gains for this activation, and what to use. `reports` are those of
    `ways_of`, not empty; `subject` names the activation: "Input of down_proj". `nonfinite` of its
    values are NaN or infinite."""
    start = f"{subject}: {channels_in_words(columns)}"
    if nonfinite:
        of, them = plural(nonfinite, "value is", "values are"), "it" if nonfinite == 1 else "them"
        lost = f"{of} NaN or infinite: find the layer that makes {them} first"
        if nonfinite == columns.rows * columns.absmax.size:
            return f"{subject}: {lost}; none is finite, so there is nothing to quantize."
        start = f"{subject}: {lost}. Of the finite rest: {channels_in_words(columns)}"
    scheme = reports[0].way.scheme
    if scheme.family not in RANGED:
        cast = scheme.family is Family.CAST
        why = "a cast has no scales" if cast else "its scales come from the values themselves"
        kept = _words(_kept(reports[0]))
        return f"{start}; {scheme} keeps {kept} and needs no calibration, because {why}."
    dynamic = max((r for r in reports if r.way.kind == "dynamic"), key=_rank)
    fixed = [r for r in reports if r.way.kind == "static"]
    first, best = fixed[0], max(fixed, key=_rank)
    keeps = f"{scheme.format} {dynamic.way.words} keeps {_words(_kept(dynamic))}"
    unseen = " on text it has not seen" if first.held_out is not None else ""
    drop = ""
    if first.loss_db is not None and first.loss_db >= SLIGHT_DB:
        drop = f", {first.loss_db:.1f} dB less than on the calibration text"
    static = f"a static {first.way.words} range {_words(_kept(first))}{unseen}{drop}"
    return f"{start}; {keeps}, {static}: {_advice(dynamic, best, first)}."


def _advice(dynamic: RangeReport, best: RangeReport, first: RangeReport) -> str:
    """What to use: `dynamic`, or `best` of the static ranges, of which `first` is min-max."""
    name = best.way.words if best is first else f"{best.way.words} of the magnitudes"
    if _rank(best) >= _rank(dynamic) - ENOUGH_DB:
        advice = f"the static range from {name} is enough, and costs nothing at run time"
    elif _rank(best) < _rank(first) + SLIGHT_DB:
        advice = f"use {dynamic.way.words}"
    else:
        advice = f"use {dynamic.way.words}; fixed, {name} is better ({_words(_kept(best))})"
    most = max(_rank(dynamic), _rank(best))
    if most < NOTHING_DB:
        return "nothing is left of it, so look at its values first"
    return advice if most >= POOR_DB else f"{advice}, though it is little: {_MORE_BITS}"


def conclude_output(
    label: str, weights: OutputError, activations: OutputError, both: OutputError
) -> str:
    """What the errors of weights and activations do to the output of the layer, and which
    dominates."""
    alone = (weights.sqnr_db, activations.sqnr_db)
    if alone == (None, None):
        return f"Output under {label}: exact, as are the weights and the activations."
    gap = _or_exact(alone[1]) - _or_exact(alone[0])
    decide = "both count, improve both"
    if gap >= DECIDES_DB:
        decide = "the weights decide, give them the bits"
    elif gap <= -DECIDES_DB:
        decide = "the activations decide, give them bits or finer scales"
    return (
        f"Output under {label}: {_words(both.sqnr_db, 'exact')} (weights alone "
        f"{_words(alone[0], 'exact')}, activations alone {_words(alone[1], 'exact')}): {decide}."
    )


def _kept(report: RangeReport) -> float | None:
    """The SQNR that counts: on held-out text if there is some, else on the calibration text."""
    return (report.held_out or report.calibration).sqnr_db


def _rank(report: RangeReport) -> float:
    return _or_exact(_kept(report))


def _or_exact(sqnr_db: float | None) -> float:
    return float("inf") if sqnr_db is None else sqnr_db


def _words(sqnr_db: float | None, exact: str = "everything") -> str:
    return exact if sqnr_db is None else f"{db_text(sqnr_db)} dB"
