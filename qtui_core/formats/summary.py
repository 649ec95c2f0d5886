"""The sentence under a table of formats, computed from its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from qtui_core.formats.decimals import format_exact, format_rounded
from qtui_core.formats.scalar import floor_log2, is_finite, is_negative
from qtui_core.formats.spec import FloatFormat, Format, IntFormat
from qtui_core.formats.table import FormatOutcome, FormatRow
from qtui_core.quantities import power_text

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
    asked = rows[0].asked
    if isinstance(asked, float) and math.isnan(asked):
        return _of_nan(rows)
    if isinstance(asked, float) and math.isinf(asked):
        return _of_infinity(asked, rows)
    # A format without a sign or a zero is a scale format. Numbers that it was not made for get a
    # sentence of their own.
    lacks = "zero" if asked == 0 else "sign"
    aside = [
        r
        for r in rows
        if (not r.format.has_zero if asked == 0 else asked < 0 and not r.format.signed)
    ]
    others = [r for r in rows if r not in aside]
    notes = " ".join(
        f"{r.format.title}{'' if r.format.has_zero else ', a scale format,'} has no {lacks} and "
        f"gives {shown_value(r)}."
        for r in aside
    )
    if not others:
        return f"{format_exact(asked, 8)}: {notes}"
    of = _of_negative_zero if isinstance(asked, float) else _of_number
    return f"{of(others, aside)} {notes}".rstrip()


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
    titles = [title for title, _ in entries]
    return " and ".join([", ".join(titles[:-1]), titles[-1]] if titles[1:] else titles)


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


def _all(rows: Rows, aside: Rows = (), kind: str = "format") -> str:
    """Words for all of `rows`, which with `aside` are all formats of that kind in the table."""
    if len(rows) == 1:
        return rows[0].format.title
    return f"every {kind} here{f' but {names(aside, aside)}' if aside else ''}"


def _verb(rows: Rows, one: str, several: str) -> str:
    return one if len(rows) == 1 else several


def _of_nan(rows: Rows) -> str:
    without = [r for r in rows if r.outcome is FormatOutcome.NOT_REPRESENTABLE]
    if not without:
        return f"NaN stays NaN in {_all(rows)}, and in every sum it enters: find its first source."
    return (
        f"{names(without, rows)} {_verb(without, 'has', 'have')} no code for NaN: find the "
        f"operation it came from, or replace it, before casting there."
    )


def _of_infinity(asked: float, rows: Rows) -> str:
    kept = [r for r in rows if r.value == asked]
    cut = [r for r in rows if r.value is not None and is_finite(r.value)]
    lost = [r for r in rows if r.kind is not None and r not in kept and r not in cut]
    without = [r for r in rows if r.kind is None]
    parts = []
    if kept:
        parts.append(f"{format_exact(asked)} survives in {names(kept, rows)}")
    if cut:
        first = f"{cut[0].format.title}: " if len(cut) > 1 else ""
        parts.append(
            f"{names(cut, rows)} {_verb(cut, 'cuts', 'cut')} it to the "
            f"{'largest' if asked > 0 else 'lowest'} number ({first}{shown_value(cut[0])})"
        )
    if lost:
        parts.append(f"{names(lost, rows)} {_verb(lost, 'turns', 'turn')} it into NaN")
    if without:
        parts.append(f"{names(without, rows)} {_verb(without, 'has', 'have')} no code for it")
    advice = "A cut hides the overflow, so look for it before casting"
    if not cut:
        advice = "Look for the overflow it came from"
    return f"{'' if kept else f'{format_exact(asked)}: '}{'; '.join(parts)}. {advice}."


def _of_negative_zero(rows: Rows, aside: Rows) -> str:
    plain = [r for r in rows if r.value is None or not is_negative(r.value)]
    kept = [r for r in rows if r not in plain]
    if not plain:
        return f"-0 is exact in {_all(rows, aside)}{'.' if aside else NOTHING_LOST}"
    lose = f"{names(plain, rows)} {_verb(plain, 'has', 'have')} one zero and"
    drop = _verb(plain, "drops", "drop")
    if not kept:
        return f"-0: {lose} {drop} its sign."
    return f"-0 keeps its sign in {names(kept, rows)}; {lose} {drop} it."


NOTHING_LOST = ": nothing is lost on this value."


def _of_number(rows: Rows, aside: Rows) -> str:
    """The sentence about a finite number. `rows` are those of the table without `aside`: formats
    that a statement about every format leaves out."""
    asked = Fraction(rows[0].asked)
    fates: dict[str, list[FormatRow]] = {name: [] for name in (*CLAUSES, *_WITHOUT_CLAUSE)}
    for row in rows:
        fates[_fate(asked, row)].append(row)
    shown, exact = format_exact(asked, 8), fates["exact"]
    if len(exact) == len(rows):
        return f"{shown} is exact in {_all(rows, aside)}{'.' if aside else NOTHING_LOST}"
    # A lost number is always mentioned, the others only if no number is lost.
    said = [name for name in CLAUSES if fates[name]]
    said = [name for name in said if name in ("high", "zeroed")] or said[:1]
    clauses = [CLAUSES[name](asked, fates[name], rows) for name in said]
    if not clauses:
        clauses.append(_in_range(asked, fates, rows, aside))
    head, joint = _head(shown, exact, rows, aside), ";"
    if len(rows) == 1 and rows[0].outcome is not FormatOutcome.ROUNDED:
        head, joint = shown, ":"
    elif len(rows) == 1:
        (row,) = rows
        head = f"{row.format.title} makes {shown_value(row)} of {shown}, off by {percent(row)}"
    elif near := _near(rows):
        head += f": {near}"
    return f"{head}{joint} {'; '.join(clauses)}."


def _fate(asked: Fraction, row: FormatRow) -> str:
    """What a format made of a number.

    exact. high: out of range, cut to the end, infinite, NaN or wrapped. zeroed. lifted: below the
    smallest positive number, became that or one farther from zero. beyond: past the end by at most
    half a step. subnormal: below the smallest normal number. rounded: with all the bits."""
    fmt, size, outcome = row.format, abs(asked), row.outcome
    if outcome is FormatOutcome.EXACT:
        return "exact"
    if outcome is FormatOutcome.UNDERFLOW:
        return "zeroed"
    if outcome is not FormatOutcome.OVERFLOW and size < fmt.min_positive:
        return "lifted"
    if outcome is not FormatOutcome.ROUNDED:
        return "high"
    if not fmt.min <= asked <= fmt.max:
        return "beyond"
    return "subnormal" if isinstance(fmt, FloatFormat) and size < fmt.min_normal else "rounded"


def _head(shown: str, exact: Rows, rows: Rows, aside: Rows) -> str:
    floats = [r for r in rows if isinstance(r.format, FloatFormat)]
    if len(rows) > len(floats) > 1 and all(r in exact for r in floats):
        besides = [r for r in aside if isinstance(r.format, FloatFormat)]
        return f"{shown} is exact in {_all(floats, besides, 'floating-point format')}"
    if len(exact) > _MOST_NAMED:  # the narrowest is enough: wider formats hold the number too
        narrowest = min(_by_themselves(exact), key=lambda r: r.format.bits)
        return f"{shown} is exact in {narrowest.format.title} and {len(exact) - 1} more"
    if exact:
        return f"{shown} is exact in {names(exact, rows)}{' only' if len(exact) == 1 else ''}"
    return f"No format here holds {shown} exactly"


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


def _end(asked: Fraction, fmt: Format) -> Fraction:
    return fmt.max if asked > 0 else fmt.min


def _widest(asked: Fraction, rows: Rows) -> FormatRow:
    return max(_by_themselves(rows), key=lambda r: abs(_end(asked, r.format)))


def _too_large(asked: Fraction, high: Rows, rows: Rows) -> str:
    first = _widest(asked, high)  # it needs the least scaling
    end, title = _end(asked, first.format), first.format.title
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
    scale = max(floor_log2(asked / end), 0)
    scale += Fraction(2) ** scale * abs(end) < abs(asked)
    return f"{text}, so divide by {power_text(scale)} or more before casting to {title}"


def _too_small(says: Callable[[FormatRow, Rows], str]) -> Callable[[Fraction, Rows, Rows], str]:
    """A clause about formats whose numbers are too coarse, which ends with the power of two that
    brings the number among those with all significant bits."""

    def clause(asked: Fraction, low: Rows, rows: Rows) -> str:
        def full(row: FormatRow) -> Fraction:
            return row.format.step if isinstance(row.format, IntFormat) else row.format.min_normal

        first = min(_by_themselves(low), key=lambda r: (r.format.min_positive, full(r)))
        scale = floor_log2(full(first) / abs(asked))
        scale += Fraction(2) ** scale * abs(asked) < full(first)
        return (
            f"{names(_led_by(first, low), rows)} {says(first, low)}, so multiply by "
            f"{power_text(scale)} or more before casting to {first.format.title}"
        )

    return clause


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
}
_WITHOUT_CLAUSE = ("exact", "beyond", "rounded")


def _in_range(asked: Fraction, fates: dict[str, list[FormatRow]], rows: Rows, aside: Rows) -> str:
    beyond = fates["beyond"]
    # A smaller step does not move the lowest integer: a number below it comes closer only with a
    # wider range as well.
    helped = [r for r in beyond if asked > 0 or isinstance(r.format, FloatFormat)]
    inexact = {type(r.format) for r in (*fates["rounded"], *helped)}
    wanted = {FloatFormat: "more mantissa bits", IntFormat: "a smaller step"}
    but = f" but that of {names(aside, aside)}" if aside else ""
    where = "it is inside its range" if len(rows) == 1 else f"it is inside every range{but}"
    if beyond:
        first = _widest(asked, beyond)
        others = f" and inside every other range{but}" if len(rows) > len(beyond) else ""
        where = (
            f"it is half a step or less beyond the end of {names(_led_by(first, beyond), rows)} "
            f"({first.format.title} ends at {format_rounded(_end(asked, first.format), 5)}){others}"
        )
    if not inexact:
        return f"{where} and rounds to that, as between two steps"
    means = " or ".join(words for kind, words in wanted.items() if kind in inexact)
    return f"{where}, so {means} would bring it closer, not a wider range"
