"""What one format makes of a value, and what a second one would: the sentence of a chosen format
beside a pinned one, computed from their rows."""

from __future__ import annotations

import math
from fractions import Fraction

from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.scalar import is_finite, is_negative
from qtui_core.formats.spec import Format, IntFormat
from qtui_core.formats.summary import summarize
from qtui_core.formats.summary_words import percent, shown_value
from qtui_core.formats.table import FormatOutcome, FormatRow

#: How well a row keeps its value; of two the smaller is better.
_EXACT, _SIGN_LOST, _OFF, _LOST = range(4)


def relative_text(row: FormatRow) -> str:
    """The error as a part of the value that was asked for: "+1.56%".

    "exact" where nothing is lost, of an infinity or a NaN too (the sign of a zero is no size);
    "infinite" where 0 became another number or a number became infinite; "none" where there is no
    such ratio: no code, a number that became NaN, an infinity that became a number.
    """
    if row.outcome is FormatOutcome.EXACT:
        return "exact"
    if row.relative_error is not None:
        return f"{format_rounded(row.relative_error * 100, 3, signed=True)}%"
    if row.value is None or not is_finite(row.asked):
        return "none"
    return "none" if isinstance(row.value, float) and math.isnan(row.value) else "infinite"


def compare_pair(chosen: FormatRow, pinned: FormatRow) -> str:
    """What the chosen format makes of the value beside what the pinned one does: which is closer
    and how many times, the bits of each and the range of each. Both are rows of the same value."""
    if chosen.format is pinned.format:
        return f"{summarize((chosen,))} Choose another format to compare it with this pinned one."
    return f"{_closeness(chosen, pinned)}. {_costs(chosen, pinned)}."


def _closeness(chosen: FormatRow, pinned: FormatRow) -> str:
    one, other, asked = chosen.format.title, pinned.format.title, format_exact(chosen.asked, 8)
    level, beside = _level(chosen), _level(pinned)
    if level != beside:
        better, worse = (chosen, pinned) if level < beside else (pinned, chosen)
        does = "keeps {} better than" if _level(better) < _OFF else "comes closer to {} than"
        return (
            f"{better.format.title} {does.format(asked)} {worse.format.title}: "
            f"{better.format.title} {_fate(better)}, {worse.format.title} {_fate(worse)}"
        )
    if level == _EXACT:
        return f"{one} and {other} both keep {asked} exactly"
    if level == _SIGN_LOST:
        return f"{one} and {other} both drop the sign of {asked}"
    if level == _LOST:
        if _fate(chosen) == _fate(pinned):
            return f"Neither {one} nor {other} keeps {asked}: each {_fate(chosen)}"
        return (
            f"Neither {one} nor {other} keeps {asked}: {one} {_fate(chosen)}, {other} "
            f"{_fate(pinned)}"
        )
    return _nearer(chosen, pinned, asked)


def _nearer(chosen: FormatRow, pinned: FormatRow, asked: str) -> str:
    """Of two finite numbers that are not the value."""
    one, other = chosen.format.title, pinned.format.title
    near, far = sorted((chosen, pinned), key=_distance)
    if chosen.value == pinned.value:
        return f"{one} and {other} both make {shown_value(chosen)} of {asked}, {_off(chosen)}"
    if _distance(near) == _distance(far):
        return (
            f"{one} and {other} are equally far from {asked}, {_off(chosen)}: {one} gives "
            f"{shown_value(chosen)}, {other} {shown_value(pinned)}"
        )
    factor = _distance(far) / _distance(near)
    times = "a little" if factor < Fraction(105, 100) else f"{_times(factor)} times"
    digits = next((n for n in range(2, 9) if percent(near, n) != percent(far, n)), 9)
    return (
        f"{near.format.title} comes {times} closer to {asked} than {far.format.title}, off by "
        f"{percent(near, digits)} against {percent(far, digits)}"
    )


def _times(factor: Fraction) -> str:
    return format_rounded(Fraction(round(factor)) if factor >= 10 else factor, 2)


def _distance(row: FormatRow) -> Fraction:
    return abs(row.error or Fraction(0))


def _level(row: FormatRow) -> int:
    if row.outcome is FormatOutcome.EXACT:
        assert row.value is not None
        lost = row.asked == 0 and is_negative(row.asked) != is_negative(row.value)
        return _SIGN_LOST if lost else _EXACT
    return _LOST if row.error is None else _OFF


def _fate(row: FormatRow) -> str:
    """What the format does to the value, as a verb: "cuts it to 448"."""
    level = _level(row)
    if level in (_EXACT, _SIGN_LOST):
        return "drops its sign" if level == _SIGN_LOST else "keeps it exactly"
    if row.value is None:
        return "has no code for it"
    shown = shown_value(row)
    if row.outcome is FormatOutcome.SATURATED and row.asked != 0:
        return f"cuts it to {shown}"
    if row.outcome is FormatOutcome.ROUNDED and row.asked != 0:
        return f"is {_off(row)}"
    wraps = isinstance(row.format, IntFormat) and row.outcome is FormatOutcome.OVERFLOW
    return f"{'wraps to' if wraps else 'gives'} {shown}"


def _off(row: FormatRow) -> str:
    return f"off by {percent(row)}"


def _costs(chosen: FormatRow, pinned: FormatRow) -> str:
    one, other = chosen.format, pinned.format
    if one.storage_bits == other.storage_bits:
        bits = f"Both take {one.storage_bits} bits"
    else:
        bits = f"{one.title} takes {one.storage_bits} bits, {other.title} {other.storage_bits}"
    return f"{bits}; {_ranges(one, other)}{_enough(chosen, pinned)}"


def _ranges(one: Format, other: Format) -> str:
    up, down = _order(one.max, other.max), _order(other.min_positive, one.min_positive)
    low, high, unlike = one.title, _reach(one), _reach(other)
    if up == down == 0:
        return f"both reach {high}"
    if up >= 0 <= down or up <= 0 >= down:
        word = "wider" if up + down > 0 else "narrower"
        return f"{low} has the {word} range, {high} against {unlike}"
    further, smaller = (one, other) if up > 0 else (other, one)
    return (
        f"{further.title} reaches further ({_reach(further)}), {smaller.title} smaller numbers "
        f"({_reach(smaller)})"
    )


def _order(a: Fraction, b: Fraction) -> int:
    return (a > b) - (a < b)


def _reach(fmt: Format) -> str:
    """The magnitudes that it holds."""
    only = "" if fmt.signed else " without sign or zero"
    return f"{format_rounded(fmt.min_positive)} to {format_rounded(fmt.max)}{only}"


def _enough(chosen: FormatRow, pinned: FormatRow) -> str:
    """What the bits that one has more than the other gain, where both make the same of a value."""
    small, large = sorted((chosen, pinned), key=lambda row: row.format.storage_bits)
    more = large.format.storage_bits - small.format.storage_bits
    level = _level(small)
    if not more or level == _LOST or level != _level(large) or _distance(small) != _distance(large):
        return ""
    if level == _EXACT:
        return f", so {small.format.title} is enough for this value"
    return f", so the {more} bits more of {large.format.title} gain nothing on this value"
