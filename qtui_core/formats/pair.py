"""What one format makes of a value, and what a second one would: the sentence of a chosen format
beside a pinned one, computed from their rows."""

from __future__ import annotations

import math
from fractions import Fraction

from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.scalar import is_finite, is_negative
from qtui_core.formats.spec import IntFormat
from qtui_core.formats.summary import distance, percent, shown_value, summarize
from qtui_core.formats.table import FormatOutcome, FormatRow

#: How well a row keeps its value; of two the smaller is better.
_EXACT, _SIGN_LOST, _OFF, _LOST = range(4)


def relative_text(row: FormatRow) -> str:
    """The error as a part of the given value: "+1.56%".

    "exact" where nothing is lost, of an infinity or a NaN too (the sign of a zero is no size);
    "infinite" where 0 became another number or a number became infinite; "none" where there is no
    such ratio: no code, a number that became NaN, an infinity that became a number.
    """
    if row.outcome is FormatOutcome.EXACT:
        return "exact"
    if row.relative_error is not None:
        return f"{format_rounded(row.relative_error * 100, 3, signed=True)}%"
    if row.value is None or not is_finite(row.given):
        return "none"
    return "none" if isinstance(row.value, float) and math.isnan(row.value) else "infinite"


def compare_pair(chosen: FormatRow, pinned: FormatRow) -> str:
    """What the chosen format makes of the value beside what the pinned one does: which is closer
    and how many times, and the bits of each. Both are rows of the same value."""
    if chosen.format is pinned.format:
        return f"{summarize((chosen,))} Choose another format to compare it with this pinned one."
    return f"{_closeness(chosen, pinned)}. {_costs(chosen, pinned)}."


def _closeness(chosen: FormatRow, pinned: FormatRow) -> str:
    one, other, given = chosen.format.title, pinned.format.title, format_exact(chosen.given, 8)
    level, beside = _level(chosen), _level(pinned)
    if level != beside:
        better, worse = (chosen, pinned) if level < beside else (pinned, chosen)
        does = "keeps {} better than" if _level(better) < _OFF else "comes closer to {} than"
        return (
            f"{better.format.title} {does.format(given)} {worse.format.title}: "
            f"{better.format.title} {_fate(better)}, {worse.format.title} {_fate(worse)}"
        )
    if level in (_EXACT, _SIGN_LOST):
        if level == _EXACT:
            return f"{one} and {other} both keep {given} exactly"
        return f"{one} and {other} both drop the sign of {given}"
    if level == _LOST:
        fates = f"each {_fate(chosen)}"
        if _fate(chosen) != _fate(pinned):
            fates = f"{one} {_fate(chosen)}, {other} {_fate(pinned)}"
        return f"Neither {one} nor {other} keeps {given}: {fates}"
    off, (near, far) = f"off by {percent(chosen)}", sorted((chosen, pinned), key=distance)
    if chosen.value == pinned.value:
        return f"{one} and {other} both make {shown_value(chosen)} of {given}, {off}"
    factor = distance(far) / distance(near)
    if factor == 1:
        return (
            f"{one} and {other} are equally far from {given}, {off}: {one} gives "
            f"{shown_value(chosen)}, {other} {shown_value(pinned)}"
        )
    times = "a little"
    if factor > Fraction(105, 100):
        times = f"{format_rounded(Fraction(round(factor)) if factor >= 10 else factor, 2)} times"
    digits = next((n for n in range(2, 9) if percent(near, n) != percent(far, n)), 9)
    return (
        f"{near.format.title} comes {times} closer to {given} than {far.format.title}, off by "
        f"{percent(near, digits)} against {percent(far, digits)}"
    )


def _level(row: FormatRow) -> int:
    if row.outcome is FormatOutcome.EXACT:
        assert row.value is not None
        lost = row.given == 0 and is_negative(row.given) != is_negative(row.value)
        return _SIGN_LOST if lost else _EXACT
    return _LOST if row.error is None else _OFF


def _fate(row: FormatRow) -> str:
    """What the format does to the value, as a verb: "cuts it to 448"."""
    level = _level(row)
    if level in (_EXACT, _SIGN_LOST):
        return "drops its sign" if level == _SIGN_LOST else "keeps it exactly"
    if row.value is None:
        return "has no code for it"
    if row.outcome is FormatOutcome.SATURATED and row.given != 0:
        return f"cuts it to {shown_value(row)}"
    if row.outcome is FormatOutcome.ROUNDED and row.given != 0:
        return f"is off by {percent(row)}"
    wraps = isinstance(row.format, IntFormat) and row.outcome is FormatOutcome.OVERFLOW
    return f"{'wraps to' if wraps else 'gives'} {shown_value(row)}"


def _costs(chosen: FormatRow, pinned: FormatRow) -> str:
    """The bits; and that fewer are enough where both keep the value."""
    one, other = chosen.format, pinned.format
    bits, enough = f"Both take {one.storage_bits} bits", ""
    if one.storage_bits != other.storage_bits:
        bits = f"{one.title} takes {one.storage_bits} bits, {other.title} {other.storage_bits}"
        if _level(chosen) == _level(pinned) == _EXACT:
            small = min((one, other), key=lambda fmt: fmt.storage_bits)
            enough = f", so {small.title} is enough for this value"
    return f"{bits}{enough}"
