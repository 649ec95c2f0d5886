"""How the sentence under a table names formats and writes numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from qtui_core.formats.decimals import format_rounded
from qtui_core.formats.scalar import Exact
from qtui_core.formats.spec import Format, IntFormat
from qtui_core.formats.table import FormatRow

#: More entries than this are cut to the first two and a count.
_MOST_NAMED = 3


def names(rows: Sequence[FormatRow], among: Sequence[FormatRow]) -> str:
    """The formats of `rows`: "FP16, E4M3 and 10 more", "E3M0, E2M1 and the integers".

    `among` are all rows of the table. "the integers" stands for all its integer formats in steps
    of 1, if every one of them is in `rows`.
    """
    integers = [r for r in among if is_whole(r.format)]
    grouped = len(integers) > 1 and all(r in rows for r in integers)
    entries = [(r.format.title, 1) for r in rows if not (grouped and r in integers)]
    if grouped:
        entries.append(("the integers", len(integers)))
    if len(entries) > _MOST_NAMED:
        more = sum(count for _, count in entries[2:])
        return f"{entries[0][0]}, {entries[1][0]} and {more} more"
    titles = [title for title, _ in entries]
    return " and ".join([", ".join(titles[:-1]), titles[-1]] if titles[1:] else titles)


def everywhere(
    rows: Sequence[FormatRow], aside: Sequence[FormatRow] = (), kind: str = "format"
) -> str:
    """Words for all of `rows`. `rows` and `aside` together are all formats of that kind in the
    table."""
    if len(rows) == 1:
        return rows[0].format.title
    return f"every {kind} here{f' but {names(aside, aside)}' if aside else ''}"


def all_kept(aside: Sequence[FormatRow]) -> str:
    """The end of "it is exact in …": the conclusion, unless some formats were left aside."""
    return "." if aside else ": nothing is lost on this value."


def verb(rows: Sequence[FormatRow], one: str, several: str) -> str:
    """`one` for a single row, else `several`."""
    return one if len(rows) == 1 else several


def is_whole(fmt: Format) -> bool:
    """Whether it holds whole numbers only. MXINT8 does not: it counts in steps of 1/64."""
    return isinstance(fmt, IntFormat) and fmt.step == 1


def percent(row: FormatRow, digits: int = 2) -> str:
    """The magnitude of the relative error, to `digits` digits: "1.6%"; with two of them,
    above 100% in whole percent."""
    size = 100 * abs(row.relative_error or Fraction(0))
    whole = size > 100 and digits == 2
    return f"{format_rounded(Fraction(round(size)) if whole else size, digits)}%"


def shown_value(row: FormatRow) -> str:
    """What the format made of the value, to five digits."""
    value: Exact = math.nan if row.value is None else row.value
    return format_rounded(value, 5)
