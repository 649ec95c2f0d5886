"""Parses the sentence under a table into claims, and checks each of them against the rows."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from qtui_core.formats import FloatFormat, FormatRow, IntFormat
from qtui_core.formats.decimals import format_rounded


def fate(row: FormatRow) -> str:
    """What happened to the row's value, derived from its numbers and not from its `outcome`."""
    fmt, asked, value = row.format, row.given, row.value
    if is_nan(asked):
        return "kept" if value is not None else "no code"
    if is_infinite(asked):
        if value is None:
            return "no code"
        return "kept" if value == asked else "NaN" if math.isnan(value) else "cut"
    if asked == 0 and not fmt.has_zero:
        return "aside"
    if asked < 0 and not fmt.signed:
        return "aside"
    if value == asked:
        lost = isinstance(asked, float) and (
            isinstance(value, Fraction) or math.copysign(1, value) > 0
        )
        return "sign lost" if lost else "exact"
    if value is None or not math.isfinite(value):
        return "high"
    if not fmt.min <= asked <= fmt.max and abs(asked) >= fmt.min_positive:
        end = fmt.max if asked > 0 else fmt.min
        exponent = 0
        while isinstance(fmt, FloatFormat) and Fraction(2) ** (exponent + 1) <= abs(end):
            exponent += 1
        step = (
            fmt.step
            if isinstance(fmt, IntFormat)
            else Fraction(2) ** (exponent - fmt.mantissa_bits)
        )
        return "beyond" if value == end and abs(asked - end) <= step / 2 else "high"
    if value == 0:
        return "zeroed"
    if abs(asked) < fmt.min_positive:
        return "lifted"
    if isinstance(fmt, FloatFormat) and abs(asked) < fmt.min_normal:
        return "subnormal"
    return "rounded"


def is_nan(value) -> bool:
    return value != value  # a Fraction may be too large for math.isnan


def is_infinite(value) -> bool:
    return value in (math.inf, -math.inf)


class Table:
    def __init__(self, rows) -> None:
        self.rows = rows
        self.by_title = {r.format.title: r for r in rows}
        self.fates = {t: fate(r) for t, r in self.by_title.items()}
        self.integers = {t for t, r in self.by_title.items() if re.fullmatch(r"INT\d+", t)}

    def of(self, *fates: str) -> set[str]:
        return {t for t, became in self.fates.items() if became in fates}

    def all_of(self, text: str, expected: set[str]) -> None:
        """Checks that `text` lists all expected formats and no others."""
        assert expected
        if text.startswith("every"):
            kind, _, but = text.partition(" but ")
            named = set(self.by_title)
            assert kind == "every format here"
            assert named - (set(but.split(", ")) if but else set()) == expected
            return
        named, count = [], 0
        for entry in re.split(", | and ", text):
            if more := re.fullmatch(r"(\d+) more", entry):
                count = int(more[1])
            elif entry == "the integers":
                assert len(self.integers) > 1
                named += self.integers
            else:
                named.append(entry)
        assert len(set(named)) == len(named)
        assert set(named) <= expected
        assert len(named) + count == len(expected)

    def factor(self, text: str) -> tuple[FormatRow, Fraction]:
        found = re.search(r"(divide|multiply) by (2\^)?(\d+) or more before casting to (.+)$", text)
        assert found, text
        by = Fraction(2) ** int(found[3]) if found[2] else Fraction(int(found[3]))
        assert by > 1
        return self.by_title[found[4]], by


def check(sentence: str, rows) -> None:
    table, asked = Table(rows), rows[0].given
    if is_nan(asked) or is_infinite(asked):
        check_special(sentence, table)
    else:
        notes = re.findall(
            r"(?:^| )([A-Z0-9]+), a scale format, has no (zero|sign) and gives (\S+)\.", sentence
        )
        assert {title for title, *_ in notes} == table.of("aside")
        for title, lacks, gives in notes:
            assert lacks == ("zero" if asked == 0 else "sign")
            assert gives == format_rounded(table.by_title[title].value, 5)
        if len(notes) == len(rows):
            return
        body = sentence.partition(" E8M0, a scale")[0].removesuffix(".")
        if isinstance(asked, float):
            check_special(body, table)
        else:
            check_number(body, table, asked)


def check_special(sentence: str, table: Table) -> None:
    """Of NaN, an infinity or -0."""
    claims = {
        "kept": "keeps? it",
        "exact": "keeps? it",
        "sign lost": "(?:has|have) one zero and drops? its sign",
        "cut": r"cuts? it to (?:(?!the)(\S+)|the end of their range \((\S+) in (.*)\))",
        "NaN": "turns? it into NaN",
        "no code": "(?:has|have) no code for it",
    }
    clauses = sentence.partition(": ")[2].partition(". ")[0].removesuffix(".").split("; ")
    for name, pattern in claims.items():
        formats = table.of(name)
        found = [m for clause in clauses if (m := re.fullmatch(f"(.*?) {pattern}", clause))]
        assert bool(found) == bool(formats) or name in ("kept", "exact")
        if formats:
            table.all_of(found[0][1], formats)
        if formats and name == "cut":
            title = found[0][4] or found[0][1]
            assert (found[0][2] or found[0][3]) == format_rounded(table.by_title[title].value, 5)
    assert len(clauses) == len({*table.fates.values()} - {"aside"})


def check_number(body: str, table: Table, asked: Fraction) -> None:
    exact = table.of("exact")
    if found := re.fullmatch(r"\S+ is exact in ([^:;]*)(: nothing is lost on this value)?", body):
        table.all_of(found[1], exact)
        assert exact | table.of("aside") == set(table.by_title)
        assert bool(found[2]) != bool(table.of("aside"))
        return
    assert "nothing is lost" not in body
    if found := re.fullmatch(r"[^ :]+: (.*)", body):  # no head: one format, and its number
        clauses = [found[1]]
    else:
        head, *clauses = body.split("; ")
        check_head(head, table, exact)
    said_of = {}
    for clause in clauses:
        for name, pattern in CLAIMS.items():
            if found := re.fullmatch(pattern, clause):
                said_of[name] = found
                break
        else:
            raise AssertionError(clause)
    assert len(said_of) == len(clauses)
    check_clauses(said_of, table, asked)


CLAIMS = {
    "high": r"(.*) cannot reach it \((.*) ends at (\S+) and (.*?)\)(?:, so (divide .*))?",
    "zeroed": r"(.*) gives? 0, so (multiply .*)",
    "lifted": r"(.*) (?:has|have) no number that small \((.*) gives (\S+)\), so (multiply .*)",
    "subnormal": r"(.*) (?:has|have) only a subnormal with fewer bits for it, so (multiply .*)",
    "beyond": r"it is half a step or less beyond the end of (.*?) \((.*) ends at (\S+)\)",
    "inside": r"it is inside (?:its|every) range(?: but that of (.*))?, so (.*) would bring it "
    r"closer, not a wider range",
}


def check_head(head: str, table: Table, exact: set[str]) -> None:
    head, _, near = head.partition(": ")
    if found := re.fullmatch(r"\S+ is exact in (.*?)( only)?", head):
        table.all_of(found[1], exact)
        assert bool(found[2]) <= (len(exact) == 1)
    elif found := re.fullmatch(r"(.*) makes (\S+) of \S+, (off by \S+%)", head):
        assert set(table.by_title) - table.of("aside") == {found[1]}
        assert found[2] == format_rounded(table.by_title[found[1]].value, 5)
        near = f"{found[1]} {found[3]}"
        assert not exact
    else:
        assert re.fullmatch(r"No format here holds \S+ exactly", head)
        assert not exact
    for title, shown in re.findall(r"(?:^|, )(.*?) (?:(?:is )?off )?by (\S+)%", near):
        row = table.by_title[title]
        assert row.relative_error is not None
        size = 100 * abs(row.relative_error)
        assert abs(Fraction(shown) - size) <= size / 20  # two digits
        assert size > 0


def check_clauses(said_of: dict[str, re.Match], table: Table, asked: Fraction) -> None:
    # Each claim is true of the formats that it lists, and lists all of them.
    for name, found in said_of.items():
        if name != "inside":
            table.all_of(found[1], table.of(name))
    # Only the worst is mentioned.
    worst = [name for name in ("high", "zeroed", "lifted", "subnormal", "beyond") if table.of(name)]
    assert list(said_of) == (worst[:1] or ["inside"])
    for name in ("high", "beyond"):
        if found := said_of.get(name):
            fmt = table.by_title[found[2]].format
            end = fmt.max if asked > 0 else fmt.min
            assert found[3] == format_rounded(end, 5)
    if found := said_of.get("high"):
        row = table.by_title[found[2]]
        if found[4] == "cuts it off there":
            assert row.value == end_of(row)
        else:
            assert found[4].split()[-1] == format_rounded(row.value, 5)
            assert found[4].startswith("wraps to" if isinstance(row.format, IntFormat) else "gives")
        target, by = table.factor(found[5])
        assert target is row
        assert target.format.min <= asked / by <= target.format.max
        assert not target.format.min <= 2 * asked / by <= target.format.max
    for name in ("zeroed", "lifted", "subnormal"):
        if found := said_of.get(name):
            target, by = table.factor(found[0])
            fmt = target.format
            full = fmt.min_normal if isinstance(fmt, FloatFormat) else fmt.step
            assert full <= abs(asked) * by < 2 * full
            if name == "lifted":
                assert found[3] == format_rounded(table.by_title[found[2]].value, 5)
    if found := said_of.get("inside"):
        wanted, but = found[2], found[1]
        kinds = {type(table.by_title[title].format) for title in table.of("rounded")}
        assert ("mantissa" in wanted) == (FloatFormat in kinds)
        assert ("step" in wanted) == (IntFormat in kinds)
        asked_of = [r for t, r in table.by_title.items() if table.fates[t] != "aside"]
        assert all(r.format.min <= asked <= r.format.max for r in asked_of)
        assert len(asked_of) == 1 or (but or "") == ", ".join(table.of("aside"))


def end_of(row: FormatRow) -> Fraction:
    return row.format.max if row.given > 0 else row.format.min
