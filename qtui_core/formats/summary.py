"""The one sentence a table of formats ends in, computed from its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.scalar import Exact, floor_log2
from qtui_core.formats.spec import FloatFormat, Format, IntFormat
from qtui_core.formats.table import FormatRow, Outcome

_OUT_OF_RANGE = (Outcome.SATURATED, Outcome.OVERFLOW)
#: The widths whose best format is compared: training, FP8, FP6 and FP4.
_COMPARED_BITS = (16, 8, 6, 4)


def summarize(rows: Sequence[FormatRow]) -> str:
    """What the table says about its value and what to do about it; "" for no rows.

    `rows` are those of one value, as describe_value gives them.
    """
    if not rows:
        return ""
    # A scale format is not asked to hold values, and integers only make sense beside a scale.
    given = rows
    numbers = [r for r in rows if isinstance(r.format, FloatFormat) and r.format.has_zero]
    rows = numbers or rows
    asked = rows[0].asked
    if isinstance(asked, float) and math.isnan(asked):
        return _conclude_nan(rows)
    if isinstance(asked, float) and math.isinf(asked):
        return _conclude_infinity(asked, rows)
    sentence = _conclude_finite(Fraction(asked), rows)
    scales = [r for r in given if not r.format.has_zero]
    if asked == 0 and scales:
        became = _shown_value(scales[0])
        return f"{sentence} {scales[0].format.title} is a scale, has no zero and gives {became}."
    return sentence


def _conclude_nan(rows: Sequence[FormatRow]) -> str:
    without = [r for r in rows if r.outcome is Outcome.NOT_REPRESENTABLE]
    if not without:
        return "NaN stays NaN in every format here, and every sum it enters: find its first source."
    return (
        f"{_names(without)} {_verb(without, 'has', 'have')} no code for NaN: find the operation "
        f"it came from, or replace it, before casting there."
    )


def _conclude_infinity(asked: float, rows: Sequence[FormatRow]) -> str:
    shown = format_exact(asked)
    kept = [r for r in rows if r.value == asked]
    cut = [r for r in rows if r.outcome is Outcome.SATURATED]
    lost = [r for r in rows if r not in kept and r not in cut]
    parts = []
    if kept:
        parts.append(f"{shown} survives in {_names(kept)}")
    if cut:
        first = _shown_value(cut[0])
        parts.append(
            f"{_names(cut)} {_verb(cut, 'cuts', 'cut')} it to the largest number ({first})"
        )
    if lost:
        parts.append(f"{_names(lost)} {_verb(lost, 'turns', 'turn')} it into NaN")
    advice = (
        "a cut hides the overflow, so look for it before casting"
        if cut
        else "look for the overflow it came from"
    )
    return f"{'; '.join(parts)}: {advice}."


def _conclude_finite(asked: Fraction, rows: Sequence[FormatRow]) -> str:
    shown = format_exact(asked, 8)
    exact = [r for r in rows if r.outcome is Outcome.EXACT]
    if len(exact) == len(rows):
        where = "every format here" if len(rows) > 1 else rows[0].format.title
        return f"{shown} is exact in {where}: nothing is lost on this value."

    if len(exact) > 3:  # naming the narrowest is enough: its wider relatives hold it too
        narrowest = min(exact, key=lambda r: r.format.bits)
        head = f"{shown} is exact in {narrowest.format.title} and {len(exact) - 1} more"
    elif exact:
        head = f"{shown} is exact in {_names(exact)}{' only' if len(exact) == 1 else ''}"
    elif len(rows) == 1:
        head = f"{rows[0].format.title} does not hold {shown} exactly"
    else:
        head = f"No format here holds {shown} exactly"
    near = [
        f"{r.format.title} {'by' if i else 'is off by'} {_percent(r)}"
        for i, r in enumerate(_closest(rows, {r.format.bits for r in exact}))
    ]
    if near:
        head += f": {', '.join(near)}"
    high = [r for r in rows if r.outcome in _OUT_OF_RANGE]
    joint = ";"
    if len(rows) == 1 and rows[0].outcome is not Outcome.ROUNDED:
        head, joint = shown, ":"
    low = [r for r in rows if r.outcome is Outcome.UNDERFLOW]
    if high:
        return f"{head}{joint} {_too_large(asked, high)}."
    if low:
        return f"{head}{joint} {_too_small(asked, low)}."
    finer = "more mantissa bits"
    if isinstance(rows[0].format, IntFormat):
        finer = "a smaller step" if asked <= rows[0].format.max else "more bits"
    return f"{head}; {_where_in_range(asked, rows)}, so only {finer} would bring it closer."


def _where_in_range(asked: Fraction, rows: Sequence[FormatRow]) -> str:
    """A value up to half a step beyond the end of a format counts as rounded, not as cut."""
    beyond = [r for r in rows if not r.format.min <= asked <= r.format.max]
    if not beyond:
        return "it is inside every range"
    first = min(beyond, key=lambda r: r.format.max)
    end = first.format.max if asked > 0 else first.format.min
    others = " and inside every other range" if len(rows) > len(beyond) else ""
    return (
        f"it is half a step or less beyond the end of {_names(beyond, first)} "
        f"({first.format.title} ends at {format_rounded(end, 5)}){others}"
    )


def _closest(rows: Sequence[FormatRow], exact_bits: set[int]) -> list[FormatRow]:
    """The row with the least error of each compared width that has only rounded ones."""
    closest = []
    for bits in _COMPARED_BITS:
        rounded = [
            r for r in rows if r.format.bits == bits and r.outcome is Outcome.ROUNDED and r.error
        ]
        if rounded and bits not in exact_bits:
            closest.append(min(rounded, key=_distance))
    # Where every width has an exact one, the worst of the others is what there is to say.
    rounded = [r for r in rows if r.outcome is Outcome.ROUNDED and r.error]
    return closest or sorted(rounded, key=_distance)[-1:]


def _distance(row: FormatRow) -> Fraction:
    return abs(row.error or Fraction(0))


def _too_large(asked: Fraction, high: Sequence[FormatRow]) -> str:
    # The one that reaches farthest needs the least help, and is the one to name.
    first = max(high, key=lambda r: r.format.max)
    end = first.format.max if asked > 0 else first.format.min
    text = (
        f"{_names(high, first)} cannot reach it ({first.format.title} ends at "
        f"{format_rounded(end, 5)} and {_became(first)})"
    )
    if not end:
        return text
    scale = max(floor_log2(asked / end), 0)
    scale += Fraction(2) ** scale * end < asked if asked > 0 else Fraction(2) ** scale * end > asked
    return f"{text}, so divide by {_power(scale)} or more before casting to {first.format.title}"


def _too_small(asked: Fraction, low: Sequence[FormatRow]) -> str:
    first = min(low, key=lambda r: r.format.min_positive)
    normal = _full_precision_from(first.format)
    scale = floor_log2(normal / abs(asked))
    scale += Fraction(2) ** scale * abs(asked) < normal
    return (
        f"{_names(low, first)} {_verb(low, 'turns', 'turn')} it into 0, so multiply by "
        f"{_power(scale)} or more before casting to {first.format.title}"
    )


def _full_precision_from(fmt: Format) -> Fraction:
    return fmt.step if isinstance(fmt, IntFormat) else fmt.min_normal


def _became(row: FormatRow) -> str:
    if row.outcome is Outcome.SATURATED:
        return "cuts it off there"
    wraps = isinstance(row.format, IntFormat)
    return f"{'wraps to' if wraps else 'gives'} {_shown_value(row)}"


def _names(rows: Sequence[FormatRow], first: FormatRow | None = None) -> str:
    """ "FP16, E4M3 and 10 more", beginning with `first` where one is given."""
    ordered = sorted(rows, key=lambda r: r is not first) if first else list(rows)
    titles = [r.format.title for r in ordered]
    if len(titles) > 3:
        return f"{', '.join(titles[:2])} and {len(titles) - 2} more"
    return " and ".join([", ".join(titles[:-1]), titles[-1]] if titles[1:] else titles)


def _verb(rows: Sequence[FormatRow], one: str, several: str) -> str:
    return one if len(rows) == 1 else several


def _percent(row: FormatRow) -> str:
    return f"{format_rounded(100 * abs(row.relative_error or Fraction(0)), 2)} %"


def _power(exponent: int) -> str:
    return str(1 << exponent) if exponent <= 10 else f"2^{exponent}"


def _shown_value(row: FormatRow) -> str:
    value: Exact = math.nan if row.value is None else row.value
    return format_rounded(value, 5)
