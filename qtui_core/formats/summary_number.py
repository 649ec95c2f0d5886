"""The sentence under a table of formats for a finite number other than zero."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from qtui_core.dataclass import dataclass
from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.scalar import floor_log2
from qtui_core.formats.spec import FloatFormat, Format, IntFormat
from qtui_core.formats.summary_words import (
    all_kept,
    everywhere,
    names,
    percent,
    shown_value,
    verb,
)
from qtui_core.formats.table import FormatOutcome, FormatRow
from qtui_core.quantities import power_text

#: The widths whose best format is compared: training, FP8, FP6 and FP4.
_COMPARED_BITS = (16, 8, 6, 4)


@dataclass(frozen=True)
class _Fates:
    """The formats sorted by what they made of a number: each is in the first list that applies."""

    exact: list[FormatRow]
    #: Out of range: cut to the end, or made infinity or NaN, or wrapped round.
    high: list[FormatRow]
    #: Not zero before, zero now.
    zeroed: list[FormatRow]
    #: Below the smallest positive number; became that number, or one farther from zero.
    lifted: list[FormatRow]
    #: Rounded below the smallest normal number, where the step no longer shrinks with the number.
    subnormal: list[FormatRow]
    #: Past the end of the range, but by no more than half a step.
    beyond: list[FormatRow]
    #: Rounded with all the significant bits of the format.
    rounded: list[FormatRow]


def conclude_number(
    asked: Fraction, rows: Sequence[FormatRow], aside: Sequence[FormatRow] = ()
) -> str:
    """The sentence about `asked`. `rows` are those of the table without `aside`: formats that a
    statement about every format leaves out."""
    fates = _sort(asked, rows)
    shown = format_exact(asked, 8)
    if len(fates.exact) == len(rows):
        return f"{shown} is exact in {everywhere(rows, aside)}{all_kept(aside)}"
    clauses = []
    if fates.high:
        clauses.append(_too_large(asked, fates.high, rows))
    if fates.zeroed:
        clauses.append(_zeroed(asked, fates.zeroed, rows))
    if not clauses and fates.lifted:
        clauses.append(_lifted(asked, fates.lifted, rows))
    if not clauses and fates.subnormal:
        clauses.append(_subnormal(asked, fates.subnormal, rows))
    if not clauses:
        clauses.append(_where_in_range(asked, fates, rows, aside))
    head, joint = _head(shown, fates.exact, rows, aside), ";"
    if len(rows) == 1 and rows[0].outcome is not FormatOutcome.ROUNDED:
        head, joint = shown, ":"
    elif len(rows) == 1:
        (row,) = rows
        head = f"{row.format.title} makes {shown_value(row)} of {shown}, off by {percent(row)}"
    elif near := _near(rows):
        head += f": {near}"
    return f"{head}{joint} {'; '.join(clauses)}."


def _sort(asked: Fraction, rows: Sequence[FormatRow]) -> _Fates:
    fates = _Fates([], [], [], [], [], [], [])
    for row in rows:
        _group(asked, row, fates).append(row)
    return fates


def _group(asked: Fraction, row: FormatRow, fates: _Fates) -> list[FormatRow]:
    fmt, size = row.format, abs(asked)
    if row.outcome is FormatOutcome.EXACT:
        return fates.exact
    if row.outcome is FormatOutcome.UNDERFLOW:
        return fates.zeroed
    if row.outcome is not FormatOutcome.OVERFLOW and size < fmt.min_positive:
        return fates.lifted
    if row.outcome is not FormatOutcome.ROUNDED:
        return fates.high
    if not fmt.min <= asked <= fmt.max:
        return fates.beyond
    if isinstance(fmt, FloatFormat) and size < fmt.min_normal:
        return fates.subnormal
    return fates.rounded


def _head(
    shown: str, exact: Sequence[FormatRow], rows: Sequence[FormatRow], aside: Sequence[FormatRow]
) -> str:
    floats = [r for r in rows if isinstance(r.format, FloatFormat)]
    if len(rows) > len(floats) > 1 and all(r in exact for r in floats):
        unasked = [r for r in aside if isinstance(r.format, FloatFormat)]
        return f"{shown} is exact in {everywhere(floats, unasked, 'floating-point format')}"
    if len(exact) > 3:  # the narrowest is enough: wider formats hold the number too
        narrowest = min(_first_choice(exact), key=lambda r: r.format.bits)
        return f"{shown} is exact in {narrowest.format.title} and {len(exact) - 1} more"
    if exact:
        return f"{shown} is exact in {names(exact, rows)}{' only' if len(exact) == 1 else ''}"
    return f"No format here holds {shown} exactly"


def _near(rows: Sequence[FormatRow]) -> str:
    """The row with the least error, for each compared width at which no format is exact."""
    rows = _first_choice(rows)
    exact_bits = {r.format.bits for r in rows if r.outcome is FormatOutcome.EXACT}
    rounded = [r for r in rows if r.outcome is FormatOutcome.ROUNDED and r.error]
    closest = [
        min(same, key=_distance)
        for bits in _COMPARED_BITS
        if bits not in exact_bits and (same := [r for r in rounded if r.format.bits == bits])
    ]
    # If every width has an exact format, name the worst of the others.
    closest = closest or sorted(rounded, key=_distance)[-1:]
    return ", ".join(
        f"{r.format.title} {'by' if i else 'is off by'} {percent(r)}" for i, r in enumerate(closest)
    )


def _distance(row: FormatRow) -> Fraction:
    return abs(row.error or Fraction(0))


def _first_choice(rows: Sequence[FormatRow]) -> Sequence[FormatRow]:
    """The rows of float formats with a zero, which can store a number by themselves: an integer
    needs a scale, and a scale format is one. All rows if there are none such."""
    floats = [r for r in rows if isinstance(r.format, FloatFormat) and r.format.has_zero]
    return floats or rows


def _too_large(asked: Fraction, high: Sequence[FormatRow], rows: Sequence[FormatRow]) -> str:
    # Name the format with the widest range: it needs the least scaling.
    first = max(_first_choice(high), key=lambda r: abs(_end(asked, r.format)))
    end = _end(asked, first.format)
    text = (
        f"{names(_led_by(first, high), rows)} cannot reach it ({first.format.title} ends at "
        f"{format_rounded(end, 5)} and {_became(first)})"
    )
    if not end:
        return text
    scale = max(floor_log2(asked / end), 0)
    scale += Fraction(2) ** scale * abs(end) < abs(asked)
    return (
        f"{text}, so divide by {power_text(scale)} or more before casting to {first.format.title}"
    )


def _end(asked: Fraction, fmt: Format) -> Fraction:
    return fmt.max if asked > 0 else fmt.min


def _became(row: FormatRow) -> str:
    if row.outcome is FormatOutcome.SATURATED:
        return "cuts it off there"
    wraps = isinstance(row.format, IntFormat)
    return f"{'wraps to' if wraps else 'gives'} {shown_value(row)}"


def _zeroed(asked: Fraction, low: Sequence[FormatRow], rows: Sequence[FormatRow]) -> str:
    first = _finest(low)
    return (
        f"{names(_led_by(first, low), rows)} {verb(low, 'gives', 'give')} 0, so "
        f"{_multiply(asked, first)}"
    )


def _lifted(asked: Fraction, low: Sequence[FormatRow], rows: Sequence[FormatRow]) -> str:
    first = _finest(low)
    return (
        f"{names(_led_by(first, low), rows)} {verb(low, 'has', 'have')} no number that small "
        f"({first.format.title} gives {shown_value(first)}), so {_multiply(asked, first)}"
    )


def _subnormal(asked: Fraction, low: Sequence[FormatRow], rows: Sequence[FormatRow]) -> str:
    first = _finest(low)
    return (
        f"{names(_led_by(first, low), rows)} {verb(low, 'has', 'have')} only a subnormal with "
        f"fewer bits for it, so {_multiply(asked, first)}"
    )


def _finest(rows: Sequence[FormatRow]) -> FormatRow:
    return min(_first_choice(rows), key=lambda r: (r.format.min_positive, _full_from(r.format)))


def _multiply(asked: Fraction, row: FormatRow) -> str:
    normal = _full_from(row.format)
    scale = floor_log2(normal / abs(asked))
    scale += Fraction(2) ** scale * abs(asked) < normal
    return f"multiply by {power_text(scale)} or more before casting to {row.format.title}"


def _full_from(fmt: Format) -> Fraction:
    """The smallest number that has all the significant bits of the format."""
    return fmt.step if isinstance(fmt, IntFormat) else fmt.min_normal


def _where_in_range(
    asked: Fraction, fates: _Fates, rows: Sequence[FormatRow], aside: Sequence[FormatRow]
) -> str:
    # A smaller step does not move the lowest integer: a number below it comes closer only with a
    # wider range as well.
    helped = [r for r in fates.beyond if asked > 0 or isinstance(r.format, FloatFormat)]
    inexact = [r.format for r in (*fates.rounded, *helped)]
    wanted = []
    if any(isinstance(f, FloatFormat) for f in inexact):
        wanted.append("more mantissa bits")
    if any(isinstance(f, IntFormat) for f in inexact):
        wanted.append("a smaller step")
    but = f" but that of {names(aside, aside)}" if aside else ""
    where = "it is inside its range" if len(rows) == 1 else f"it is inside every range{but}"
    if fates.beyond:
        first = max(_first_choice(fates.beyond), key=lambda r: abs(_end(asked, r.format)))
        others = f" and inside every other range{but}" if len(rows) > len(fates.beyond) else ""
        where = (
            f"it is half a step or less beyond the end of "
            f"{names(_led_by(first, fates.beyond), rows)} ({first.format.title} ends at "
            f"{format_rounded(_end(asked, first.format), 5)}){others}"
        )
    if not wanted:
        return f"{where} and rounds to that, as between two steps"
    return f"{where}, so {' or '.join(wanted)} would bring it closer, not a wider range"


def _led_by(first: FormatRow, rows: Sequence[FormatRow]) -> list[FormatRow]:
    return sorted(rows, key=lambda r: r is not first)
