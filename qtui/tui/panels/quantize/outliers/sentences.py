"""The sentence of the Outliers view, from what was found."""

from __future__ import annotations

from qtui.report.numbers import format_decibels, format_value, plural
from qtui.tui.panels.quantize.outliers.data import (
    Attribution,
    Granularities,
    GranularityRow,
    OutlierNumbers,
)
from qtui.tui.panels.quantize.outliers.injecting import place_text, sigmas_text
from qtui.tui.panels.quantize.outliers.listing import percent
from qtui.tui.panels.quantize.subject import Injection

#: Less than this nobody would change a scheme for.
WORTH_DB = 1.0
#: Below this share of the error columns are not worth a name.
WORTH_SHARE = 0.1
#: A cheaper granularity is named where it brings this part of what the best one does.
NEARLY = 0.7
#: Scales that a matrix product cannot take out of its sum, or that are not of one tensor.
NOT_ADVISED = ("column", "model")


def outlier_sentence(
    numbers: OutlierNumbers | None,
    granularities: Granularities | None,
    attribution: Attribution | None,
) -> str:
    """What the outliers of a tensor cost and what to do; empty while too little is known."""
    if numbers is None or granularities is None or attribution is None:
        return ""
    own = granularities.own
    if own is None:
        return ""
    if own.sqnr_db is None:
        return f"{own.scheme} makes no error on this tensor, so there is nothing to attribute."
    if not own.granularity:
        return (
            f"{own.scheme} rounds each element by itself: no outlier costs another element "
            f"anything, and SQNR is {format_decibels(own.sqnr_db)} dB."
        )
    better = advised(granularities)
    finer = ""
    if better is not None:
        finer = f"{better.granularity} {format_decibels(better.sqnr_db)} dB"
    now = f"{format_decibels(own.sqnr_db)}"
    together = attribution.together
    if together is not None and together.caused_share >= WORTH_SHARE:
        many = len(together.columns)
        carry = "carries" if many == 1 else "carry"
        them = "it" if many == 1 else "them"
        return (
            f"{many:,} of {plural(attribution.column_total, 'column')} {carry} "
            f"{percent(together.caused_share)} of the error: keeping {them} in 16 bits would bring "
            f"SQNR from {now} to {format_decibels(together.sqnr_db)} dB"
            f"{', ' + finer.replace(' ', ' would bring ', 1) if finer else ''}."
        )
    return f"{_scattered(numbers, attribution)}; {_advice(better, own, now)}."


def injection_sentence(
    injection: Injection, granularities: Granularities | None, std: float | None
) -> str:
    """What the injected outlier does under each granularity, and which confines it."""
    if granularities is None or not granularities.before:
        return ""
    losses = [
        (loss, row) for row in granularities.rows if (loss := granularities.loss(row)) is not None
    ]
    sigmas = sigmas_text(injection, std) or format_value(injection.value, 4)
    what = f"An outlier of {sigmas} at {place_text(injection)}"
    if not losses:
        return f"{what} costs nothing: there is no error to compare with."
    worst = max(losses, key=lambda found: found[0])
    best = min(losses, key=lambda found: (round(found[0], 1), found[1].bits_per_parameter))
    if worst[0] < WORTH_DB:
        return (
            f"{what} takes no more than {format_decibels(max(0.0, worst[0]))} dB from any "
            f"granularity: it is hardly larger than what is there."
        )
    if len(losses) == 1:
        return f"{what} takes {worst[0]:.1f} dB from {worst[1].scheme}."
    own = next((found for found in losses if found[1].scheme == granularities.scheme), None)
    also = ""
    if own is not None and own[1] not in (worst[1], best[1]):
        also = f" and {own[0]:.1f} dB from {own[1].granularity}"
    return (
        f"{what} takes {worst[0]:.1f} dB from one scale per {worst[1].granularity}{also}; "
        f"{best[1].granularity} confines it to {format_decibels(max(0.0, best[0]))} dB, at "
        f"{best[1].bits_per_parameter:.2f} bits per parameter."
    )


def advised(granularities: Granularities) -> GranularityRow | None:
    """The cheapest granularity that brings nearly as much as the best; None where none brings
    enough to change the scheme for."""
    own = granularities.own
    if own is None or own.sqnr_db is None:
        return None
    now = own.sqnr_db
    gains = [
        (row.sqnr_db - now, row)
        for row in granularities.rows
        if row.sqnr_db is not None and row.granularity not in NOT_ADVISED
    ]
    most = max((gain for gain, _ in gains), default=0.0)
    worth = [row for gain, row in gains if gain >= max(WORTH_DB, NEARLY * most)]
    return min(worth, key=lambda row: row.bits_per_parameter, default=None)


def _scattered(numbers: OutlierNumbers, attribution: Attribution) -> str:
    most = next(iter(attribution.tried), None)
    if most is not None and most.caused_share >= WORTH_SHARE:
        return (
            f"Column {most.columns[0]:,} carries {percent(most.caused_share)} of the error, "
            f"though it does not stand out"
        )
    if not numbers.count:
        return "No element lies beyond six sigma, and no column stands out"
    if not numbers.columns_hit:
        return f"{plural(numbers.count, 'element')} of this vector beyond six sigma"
    lie = "lies" if numbers.count == 1 else "lie"
    return (
        f"{plural(numbers.count, 'element')} beyond six sigma {lie} scattered over "
        f"{plural(numbers.columns_hit, 'column')}, none of which carries much of the error"
    )


def _advice(better: GranularityRow | None, own: GranularityRow, now: str) -> str:
    if better is None:
        return f"no other granularity brings more than {WORTH_DB:g} dB over the {now} dB of it"
    return (
        f"{better.granularity} would bring SQNR from {now} to {format_decibels(better.sqnr_db)} dB"
    )
