"""What a table of formats says about a finite number."""

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
    power_text,
    shown_value,
    verb,
)
from qtui_core.formats.table import FormatOutcome, FormatRow

#: The widths whose best format is compared: training, FP8, FP6 and FP4.
_COMPARED_BITS = (16, 8, 6, 4)


@dataclass(frozen=True)
class _Fates:
    """What became of a number, each format under the first that holds of it."""

    exact: list[FormatRow]
    #: Out of range: cut to the end, or made infinity or NaN, or wrapped round.
    high: list[FormatRow]
    #: Not zero before, zero now.
    zeroed: list[FormatRow]
    #: Below the smallest positive number, and became it (or one farther from zero).
    lifted: list[FormatRow]
    #: Rounded where the steps do not shrink with the number any more.
    subnormal: list[FormatRow]
    #: Past the end, but within half a step of it.
    beyond: list[FormatRow]
    #: Rounded with all the bits the format has.
    rounded: list[FormatRow]


def conclude_number(
    asked: Fraction, rows: Sequence[FormatRow], aside: Sequence[FormatRow] = ()
) -> str:
    """The sentence about `asked`. `rows` are the table's without those `aside`, which are
    excepted where something is said of every format."""
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
    if len(exact) > 3:  # naming the narrowest is enough: its wider relatives hold it too
        narrowest = min(_first_choice(exact), key=lambda r: r.format.bits)
        return f"{shown} is exact in {narrowest.format.title} and {len(exact) - 1} more"
    if exact:
        return f"{shown} is exact in {names(exact, rows)}{' only' if len(exact) == 1 else ''}"
    if len(rows) == 1:
        return f"{rows[0].format.title} does not hold {shown} exactly"
    return f"No format here holds {shown} exactly"


def _near(rows: Sequence[FormatRow]) -> str:
    """The row with the least error of each compared width that has only rounded ones."""
    rows = _first_choice(rows)
    exact_bits = {r.format.bits for r in rows if r.outcome is FormatOutcome.EXACT}
    rounded = [r for r in rows if r.outcome is FormatOutcome.ROUNDED and r.error]
    closest = [
        min(same, key=_distance)
        for bits in _COMPARED_BITS
        if bits not in exact_bits and (same := [r for r in rounded if r.format.bits == bits])
    ]
    # Where every width has an exact one, the worst of the others is what there is to say.
    closest = closest or sorted(rounded, key=_distance)[-1:]
    return ", ".join(
        f"{r.format.title} {'by' if i else 'is off by'} {percent(r)}" for i, r in enumerate(closest)
    )


def _distance(row: FormatRow) -> Fraction:
    return abs(row.error or Fraction(0))


def _first_choice(rows: Sequence[FormatRow]) -> Sequence[FormatRow]:
    """Those of the rows whose formats one would store a number in as it is: integers only make
    sense beside a scale, and a scale format is one. All of them where there is no such row."""
    floats = [r for r in rows if isinstance(r.format, FloatFormat) and r.format.has_zero]
    return floats or rows


def _too_large(asked: Fraction, high: Sequence[FormatRow], rows: Sequence[FormatRow]) -> str:
    # The one that reaches farthest needs the least help, and is the one to name.
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
    """The smallest number that is held with all the bits of the format."""
    return fmt.step if isinstance(fmt, IntFormat) else fmt.min_normal


def _where_in_range(
    asked: Fraction, fates: _Fates, rows: Sequence[FormatRow], aside: Sequence[FormatRow]
) -> str:
    # The lowest integer stays where it is when the step gets smaller: nothing short of a wider
    # range with smaller steps brings a number below it closer.
    helped = [r for r in fates.beyond if asked > 0 or isinstance(r.format, FloatFormat)]
    inexact = [r.format for r in (*fates.rounded, *helped)]
    wanted = []
    if any(isinstance(f, FloatFormat) for f in inexact):
        wanted.append("more mantissa bits")
    if any(isinstance(f, IntFormat) for f in inexact):
        wanted.append("a smaller step")
    but = f" but that of {names(aside, aside)}" if aside else ""
    where = f"it is inside every range{but}"
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
