"""The sentence of the Outliers view."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qtui.engine.answers.outliers import (
    DecompositionSweep,
    ErrorByColumn,
    Granularities,
    GranularityRow,
    OutlierNumbers,
)
from qtui.engine.requests import Injection
from qtui.report.numbers import format_decibels, format_value
from qtui.tui.panels.quantize.outliers.detection import Detection, beyond_text
from qtui.tui.panels.quantize.outliers.injection import place_text, sigmas_text
from qtui.tui.panels.quantize.outliers.listing import nothing_found, percent
from qtui_core.quantities import plural

#: The least gain in dB that is worth another scheme.
WORTH_DB = 1.0
#: The least share of the error for which a column is named.
WORTH_SHARE = 0.1
#: A larger share of all columns than this is too many to be outliers.
FEW_COLUMNS = 0.05
#: A column stands out if it is larger than this many times the median column.
STANDS_OUT = Detection().ratio
#: The cheapest granularity with this share of the best one's gain is advised.
NEARLY = 0.7
#: Granularities whose scales a matrix product cannot take out of its sum, or that are shared by all
#: tensors.
NOT_ADVISED = ("column", "model")


def outlier_sentence(
    numbers: OutlierNumbers | None,
    granularities: Granularities | None,
    attribution: ErrorByColumn | None,
    decomposition: DecompositionSweep | None = None,
) -> str:
    """What the detected outliers cost, and what to do; empty while too little is known."""
    if numbers is None or granularities is None or attribution is None:
        return ""
    own = granularities.own
    if own is None:
        return ""
    if own.saturated and not own.granularity:
        return _beyond_range(own)
    if own.sqnr_db is None:
        return f"{own.scheme} makes no error on this tensor, so there is nothing to attribute."
    if not own.granularity:
        return (
            f"{own.scheme} rounds each element by itself, so no outlier affects another element; "
            f"the SQNR is {format_decibels(own.sqnr_db)} dB."
        )
    better = advised(granularities)
    now = f"{format_decibels(own.sqnr_db)}"
    together, many = attribution.together, attribution.together_count
    advice = _advice(better, own, now, granularities.rows)
    if not granularities.saves(own):
        advice = f"at {own.bits_per_parameter:.2f} bits it saves nothing, so leave it as stored"
    if together is None:
        return f"{_scattered(numbers, attribution)}; {advice}."
    of = f"{many:,} of {plural(attribution.column_total, 'column')}"
    at = _at(numbers)
    share = percent(together.caused_share)
    if many > max(1.0, FEW_COLUMNS * attribution.column_total):
        return (
            f"{at}, {of} carry {share} of the error: {_too_many(numbers, decomposition)}; {advice}."
        )
    them = "it" if many == 1 else "them"
    if together.caused_share < WORTH_SHARE:
        stand = "is an outlier, but carries" if many == 1 else "are outliers, but carry"
        return f"{at}, {of} {stand} only {share} of the error; {advice}."
    finer = ""
    if not granularities.saves(own, many / attribution.column_total):
        return f"{at}, {of} {'carries' if many == 1 else 'carry'} {share} of the error; {advice}."
    if better is not None:
        finer = f", {better.granularity} to {format_decibels(better.sqnr_db)} dB{_bits(better)}"
    return (
        f"{at}, {of} {'carries' if many == 1 else 'carry'} {share} of the error: keeping {them} "
        f"in 16 bits would bring SQNR from {now} to {format_decibels(together.sqnr_db)} dB{finer}."
    )


def _beyond_range(own: GranularityRow) -> str:
    """The sentence about elements beyond the format's largest number, which matter more than
    outliers."""
    return (
        f"{own.scheme} clips {plural(own.saturated, 'element')} to its largest number, and the "
        f"SQNR is {format_decibels(own.sqnr_db)} dB; it rounds each element by itself, so no "
        f"outlier affects another element."
    )


def injection_sentence(
    injection: Injection,
    granularities: Granularities | None,
    std: float | None,
    numbers: OutlierNumbers | None = None,
) -> str:
    """What the injected outlier costs under each granularity, which one limits the loss best, and
    whether the detection finds it."""
    if granularities is None or not granularities.before:
        return ""
    losses = [
        (loss, row) for row in granularities.rows if (loss := granularities.loss(row)) is not None
    ]
    sigmas = sigmas_text(injection, std) or format_value(injection.value, 4)
    what = f"An outlier of {sigmas} at {place_text(injection)}"
    if not losses:
        return f"{what} costs nothing, as there is no error."
    worst = max(losses, key=lambda found: found[0])
    saving = [found for found in losses if granularities.saves(found[1])]
    best = min(
        saving or [worst], key=lambda found: (round(found[0], 1), found[1].bits_per_parameter)
    )
    if worst[0] < WORTH_DB:
        return (
            f"{what} costs any granularity at most {format_decibels(max(0.0, worst[0]))} dB, as "
            f"it hardly widens a scale{_finds(injection, numbers)}."
        )
    if len(losses) == 1 or best is worst:
        return f"{what} costs {worst[1].scheme} {worst[0]:.1f} dB."
    own = next((found for found in losses if found[1].scheme == granularities.scheme), None)
    also = ""
    if own is not None and own[1] not in (worst[1], best[1]):
        also = f" and {own[0]:.1f} dB with one per {_group(own[1])}"
    return (
        f"{what} costs {worst[0]:.1f} dB with one scale per {_group(worst[1])}{also}; "
        f"one per {_group(best[1])} limits the loss to {format_decibels(max(0.0, best[0]))} dB, at "
        f"{best[1].bits_per_parameter:.2f} bits{_finds(injection, numbers)}."
    )


def _group(row: GranularityRow) -> str:
    """What shares a scale, in words: "row", "block of 1,024 elements"."""
    kind, size = re.fullmatch(r"([a-z]+?)(\d*(?:x\d+)?)", row.granularity).groups()  # type: ignore[union-attr]
    if not size:
        return kind
    return f"{kind} of {size}" if "x" in size else f"{kind} of {int(size):,}"


def _finds(injection: Injection, numbers: OutlierNumbers | None) -> str:
    """The words on whether the detection finds the injected outlier; empty if that is unknown."""
    if numbers is None or numbers.mean is None or numbers.std is None:
        return ""
    what = _limit(numbers)
    if numbers.detection == "threshold":
        found = abs(injection.value) >= numbers.limit
    elif numbers.detection == "sigma":
        found = abs(injection.value - numbers.mean) > numbers.limit * numbers.std
    else:
        found = injection.column in numbers.outlier_columns
        if not found and numbers.outlier_column_count > len(numbers.outlier_columns):
            return ""  # the engine does not send all outlier columns
        what = f"a limit of {numbers.limit:g} times"
    return f"; {what} {'finds' if found else 'does not find'} it"


def advised(granularities: Granularities) -> GranularityRow | None:
    """The cheapest granularity that gains nearly as much as the best; None if none gains at least
    WORTH_DB."""
    own = granularities.own
    if own is None or own.sqnr_db is None:
        return None
    now = own.sqnr_db
    gains = [
        (row.sqnr_db - now, row)
        for row in granularities.rows
        if row.sqnr_db is not None
        and row.granularity not in NOT_ADVISED
        and granularities.saves(row)
    ]
    most = max((gain for gain, _ in gains), default=0.0)
    worth = [row for gain, row in gains if gain >= max(WORTH_DB, NEARLY * most)]
    return min(worth, key=lambda row: row.bits_per_parameter, default=None)


def _at(numbers: OutlierNumbers) -> str:
    """The start of a sentence: the limit of the detection."""
    if numbers.detection == "column":
        return f"Over {numbers.limit:g} times the median"
    return f"At {_limit(numbers)}"


def _limit(numbers: OutlierNumbers) -> str:
    if numbers.detection == "threshold":
        return f"|x| >= {format_value(numbers.limit)}"
    return f"{numbers.limit:g} sigma"


def _too_many(numbers: OutlierNumbers, decomposition: DecompositionSweep | None) -> str:
    """Why so many columns should not be kept in 16 bits."""
    point = None if decomposition is None else decomposition.at(numbers.limit)
    if numbers.detection != "threshold" or point is None:
        return "too many to be outliers; try a higher limit"
    return f"with so many in 16 bits it takes {point.bits_per_parameter:.3g} bits per parameter"


def _scattered(numbers: OutlierNumbers, attribution: ErrorByColumn) -> str:
    """The words if no outlier column causes the error: nothing was found, or not in columns."""
    most = next(iter(attribution.tried), None)
    carries = ""
    if most is not None and most.caused_share >= WORTH_SHARE:
        carries = f"olumn {most.columns[0]:,} carries {percent(most.caused_share)} of the error"
    if not numbers.count:
        nothing, largest = nothing_found(numbers)
        found = f"N{nothing[1:]} is found ({largest})"
        return f"{found}, yet c{carries}" if carries else found
    if carries and most is not None and (most.absmax_ratio or 0.0) > STANDS_OUT:
        # The engine calls no column an outlier if too many columns are as large.
        return (
            f"C{carries}: it is {most.absmax_ratio:.3g} times the median, but so many columns are "
            f"large that none is an exception"
        )
    if carries:
        return f"C{carries}, though it does not stand out"
    if not numbers.columns_hit:
        return f"{plural(numbers.count, 'element')} {_beyond(numbers)} in this vector"
    lie = "lies" if numbers.count == 1 else "lie"
    return (
        f"{plural(numbers.count, 'element')} {_beyond(numbers)} {lie} scattered over "
        f"{plural(numbers.columns_hit, 'column')}, none of which carries much of the error"
    )


def _beyond(numbers: OutlierNumbers) -> str:
    """The limit as a part of a sentence."""
    return beyond_text(numbers.detection, numbers.limit)


def _advice(
    better: GranularityRow | None, own: GranularityRow, now: str, rows: Sequence[GranularityRow]
) -> str:
    if better is None:
        which = ""
        if any((row.sqnr_db or 0.0) - (own.sqnr_db or 0.0) > WORTH_DB for row in rows):
            which = " that saves bits and that a matrix product can use"
        return f"no other granularity{which} gains more than {WORTH_DB:g} dB over its {now} dB"
    return (
        f"{better.granularity} would bring SQNR from {now} to {format_decibels(better.sqnr_db)} dB"
        f"{_bits(better)}"
    )


def _bits(row: GranularityRow) -> str:
    return f" at {row.bits_per_parameter:.2f} bits"
