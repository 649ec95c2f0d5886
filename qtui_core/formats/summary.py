"""The sentence under a table of formats, computed from its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.scalar import Exact, floor_log2, is_finite, is_negative
from qtui_core.formats.spec import FloatFormat, Format, IntFormat
from qtui_core.formats.table import FormatOutcome, FormatRow
from qtui_core.quantities import phrase, power_text

#: More entries than this are cut to the first two and a count.
_MOST_NAMED = 3
#: The widths whose best format is compared: training, FP8, FP6 and FP4.
_COMPARED_BITS = (16, 8, 6, 4)

Rows = Sequence[FormatRow]


def summarize(rows: Rows) -> str:
    """What the table says about its value and what to do about it; "" for no rows.

    `rows` are those of one value, as describe_value gives them. What is said of a list of formats
    is true of each of them and of no other format in the table.
    """
    if not rows:
        return ""
    given = rows[0].given
    if not is_finite(given):
        return _of_special(given, rows)
    # A format without a sign or a zero is a scale format. Numbers that it was not made for get a
    # sentence of their own.
    lacks = "zero" if given == 0 else "sign"
    aside = [
        r
        for r in rows
        if (not r.format.has_zero if given == 0 else given < 0 and not r.format.signed)
    ]
    others = [r for r in rows if r not in aside]
    notes = " ".join(
        f"{r.format.title}{'' if r.format.has_zero else ', a scale format,'} has no {lacks} and "
        f"gives {shown_value(r)}."
        for r in aside
    )
    if not others:
        return f"{format_exact(given, 8)}: {notes}"
    negative_zero = isinstance(given, float)
    said = _of_special(given, others) if negative_zero else _of_number(others, aside)
    return f"{said} {notes}".rstrip()


def names(rows: Rows, among: Rows) -> str:
    """The formats of `rows`: "FP16, E4M3 and 10 more", "E3M0, E2M1 and the integers".

    `among` are all rows of the table. "the integers" stands for all its integer formats in steps
    of 1, if every one of them is in `rows`.
    """
    integers = [r for r in among if isinstance(r.format, IntFormat) and r.format.step == 1]
    grouped = len(integers) > 1 and all(r in rows for r in integers)
    entries = [(r.format.title, 1) for r in rows if not (grouped and r in integers)]
    if grouped:
        entries.append(("the integers", len(integers)))
    if len(entries) > _MOST_NAMED:
        more = sum(count for _, count in entries[2:])
        return f"{entries[0][0]}, {entries[1][0]} and {more} more"
    return phrase([title for title, _ in entries])


def percent(row: FormatRow, digits: int = 2) -> str:
    """The magnitude of the relative error, to `digits` digits: "1.6%"; with two of them,
    above 100% in whole percent."""
    size = 100 * abs(row.relative_error or Fraction(0))
    whole = size > 100 and digits == 2
    return f"{format_rounded(Fraction(round(size)) if whole else size, digits)}%"


def shown_value(row: FormatRow) -> str:
    """What the format made of the value, to five digits."""
    return format_rounded(math.nan if row.value is None else row.value, 5)


def distance(row: FormatRow) -> Fraction:
    """The magnitude of the error; 0 if there is none."""
    return abs(row.error or Fraction(0))


def _all(rows: Rows, aside: Rows) -> str:
    """Words for all of `rows`, which with `aside` are all formats of the table."""
    if len(rows) == 1:
        return rows[0].format.title
    return f"every format here{f' but {names(aside, aside)}' if aside else ''}"


def _verb(rows: Rows, one: str, several: str) -> str:
    return one if len(rows) == 1 else several


#: What becomes of NaN, an infinity or -0 in a format: the words for one format, and for several.
_BECOMES = {
    "kept": ("keeps it", "keep it"),
    "sign": ("has one zero and drops its sign", "have one zero and drop its sign"),
    "cut": ("cuts it to {}", "cut it to the end of their range ({} in {})"),
    "lost": ("turns it into NaN", "turn it into NaN"),
    "none": ("has no code for it", "have no code for it"),
}


def _of_special(given: Exact, rows: Rows) -> str:
    """The sentence about NaN, an infinity or -0."""
    fates: dict[str, list[FormatRow]] = {name: [] for name in _BECOMES}
    for row in rows:
        fates[_special_fate(given, row)].append(row)
    parts = [
        f"{names(those, rows)} {_BECOMES[fate][len(those) > 1]}".format(
            shown_value(those[0]), those[0].format.title
        )
        for fate, those in fates.items()
        if those
    ]
    advice = " Find where it comes from before casting." if given != 0 else ""
    return f"{format_exact(given)}: {'; '.join(parts)}.{advice}"


def _special_fate(given: Exact, row: FormatRow) -> str:
    if row.value is None:
        return "none"
    if given == 0:
        return "kept" if is_negative(row.value) else "sign"
    if is_finite(row.value):
        return "cut"
    return "kept" if row.value == given or given != given else "lost"


NOTHING_LOST = ": nothing is lost on this value."


def _of_number(rows: Rows, aside: Rows) -> str:
    """The sentence about a finite number. `rows` are those of the table without `aside`: formats
    that a statement about every format leaves out."""
    given = Fraction(rows[0].given)
    fates: dict[str, list[FormatRow]] = {name: [] for name in ("exact", *CLAUSES, "rounded")}
    for row in rows:
        fates[_fate(given, row)].append(row)
    number, exact = format_exact(given, 8), fates["exact"]
    if len(exact) == len(rows):
        return f"{number} is exact in {_all(rows, aside)}{'.' if aside else NOTHING_LOST}"
    worst = next((name for name in CLAUSES if fates[name]), None)
    clause = CLAUSES[worst](given, fates[worst], rows) if worst else _in_range(fates, rows, aside)
    head, joint = _head(number, exact, rows), ";"
    if len(rows) == 1 and rows[0].outcome is not FormatOutcome.ROUNDED:
        head, joint = number, ":"
    elif len(rows) == 1:
        (row,) = rows
        head = f"{row.format.title} makes {shown_value(row)} of {number}, off by {percent(row)}"
    elif near := _near(rows):
        head += f": {near}"
    return f"{head}{joint} {clause}."


def _fate(given: Fraction, row: FormatRow) -> str:
    """What a format made of a number.

    exact. high: out of range, cut to the end, infinite, NaN or wrapped. zeroed. lifted: below the
    smallest positive number, became that or one farther from zero. beyond: past the end by at most
    half a step. subnormal: below the smallest normal number. rounded: with all the bits."""
    fmt, size, outcome = row.format, abs(given), row.outcome
    if outcome is FormatOutcome.EXACT:
        return "exact"
    if outcome is FormatOutcome.UNDERFLOW:
        return "zeroed"
    if outcome is not FormatOutcome.OVERFLOW and size < fmt.min_positive:
        return "lifted"
    if outcome is not FormatOutcome.ROUNDED:
        return "high"
    if not fmt.min <= given <= fmt.max:
        return "beyond"
    return "subnormal" if isinstance(fmt, FloatFormat) and size < fmt.min_normal else "rounded"


def _head(number: str, exact: Rows, rows: Rows) -> str:
    if len(exact) > _MOST_NAMED:  # the narrowest is enough: wider formats hold the number too
        narrowest = min(_by_themselves(exact), key=lambda r: r.format.bits)
        return f"{number} is exact in {narrowest.format.title} and {len(exact) - 1} more"
    if exact:
        return f"{number} is exact in {names(exact, rows)}{' only' if len(exact) == 1 else ''}"
    return f"No format here holds {number} exactly"


def _near(rows: Rows) -> str:
    """The row with the least error, for each compared width at which no format is exact."""
    rows = _by_themselves(rows)
    exact_bits = {r.format.bits for r in rows if r.outcome is FormatOutcome.EXACT}
    rounded = [r for r in rows if r.outcome is FormatOutcome.ROUNDED and r.error]
    closest = [
        min(same, key=distance)
        for bits in _COMPARED_BITS
        if bits not in exact_bits and (same := [r for r in rounded if r.format.bits == bits])
    ]
    # If every width has an exact format, name the worst of the others.
    closest = closest or sorted(rounded, key=distance)[-1:]
    return ", ".join(
        f"{r.format.title} {'by' if i else 'is off by'} {percent(r)}" for i, r in enumerate(closest)
    )


def _by_themselves(rows: Rows) -> Rows:
    """The rows of float formats with a zero, which can store a number by themselves: an integer
    needs a scale, and a scale format is one. All rows if there are none such."""
    return [r for r in rows if isinstance(r.format, FloatFormat) and r.format.has_zero] or rows


def _led_by(first: FormatRow, rows: Rows) -> Rows:
    return sorted(rows, key=lambda r: r is not first)


def _end(given: Fraction, fmt: Format) -> Fraction:
    return fmt.max if given > 0 else fmt.min


def _widest(given: Fraction, rows: Rows) -> FormatRow:
    return max(_by_themselves(rows), key=lambda r: abs(_end(given, r.format)))


def _too_large(given: Fraction, high: Rows, rows: Rows) -> str:
    first = _widest(given, high)  # it needs the least scaling
    end, title = _end(given, first.format), first.format.title
    became = "cuts it off there"
    if first.outcome is not FormatOutcome.SATURATED:
        wraps = isinstance(first.format, IntFormat)
        became = f"{'wraps to' if wraps else 'gives'} {shown_value(first)}"
    text = (
        f"{names(_led_by(first, high), rows)} cannot reach it ({title} ends at "
        f"{format_rounded(end, 5)} and {became})"
    )
    if not end:
        return text
    scale = max(floor_log2(given / end), 0)
    scale += Fraction(2) ** scale * abs(end) < abs(given)
    return f"{text}, so divide by {power_text(scale)} or more before casting to {title}"


def _too_small(says: Callable[[FormatRow, Rows], str]) -> Callable[[Fraction, Rows, Rows], str]:
    """A clause about formats whose numbers are too coarse, which ends with the power of two that
    brings the number among those with all significant bits."""

    def clause(given: Fraction, low: Rows, rows: Rows) -> str:
        def full(row: FormatRow) -> Fraction:
            return row.format.step if isinstance(row.format, IntFormat) else row.format.min_normal

        first = min(_by_themselves(low), key=lambda r: (r.format.min_positive, full(r)))
        scale = floor_log2(full(first) / abs(given))
        scale += Fraction(2) ** scale * abs(given) < full(first)
        return (
            f"{names(_led_by(first, low), rows)} {says(first, low)}, so multiply by "
            f"{power_text(scale)} or more before casting to {first.format.title}"
        )

    return clause


def _past_the_end(given: Fraction, beyond: Rows, rows: Rows) -> str:
    first = _widest(given, beyond)
    return (
        f"it is half a step or less beyond the end of {names(_led_by(first, beyond), rows)} "
        f"({first.format.title} ends at {format_rounded(_end(given, first.format), 5)})"
    )


#: By fate, in the order of what is worse.
CLAUSES: dict[str, Callable[[Fraction, Rows, Rows], str]] = {
    "high": _too_large,
    "zeroed": _too_small(lambda first, low: f"{_verb(low, 'gives', 'give')} 0"),
    "lifted": _too_small(
        lambda first, low: (
            f"{_verb(low, 'has', 'have')} no number that small ({first.format.title} gives "
            f"{shown_value(first)})"
        )
    ),
    "subnormal": _too_small(
        lambda first, low: f"{_verb(low, 'has', 'have')} only a subnormal with fewer bits for it"
    ),
    "beyond": _past_the_end,
}


def _in_range(fates: dict[str, list[FormatRow]], rows: Rows, aside: Rows) -> str:
    inexact = {type(row.format) for row in fates["rounded"]}
    wanted = {FloatFormat: "more mantissa bits", IntFormat: "a smaller step"}
    but = f" but that of {names(aside, aside)}" if aside else ""
    where = "it is inside its range" if len(rows) == 1 else f"it is inside every range{but}"
    means = " or ".join(words for kind, words in wanted.items() if kind in inexact)
    return f"{where}, so {means} would bring it closer, not a wider range"
