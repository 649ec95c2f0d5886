"""The sentence under a table says what the rows say: by example, and for every value."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qtui_core.formats import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    INT4,
    INT8,
    FormatRow,
    Outcome,
    Rounding,
    describe_value,
    parse_value,
    round_value,
    summarize,
)
from qtui_core.formats.decimals import format_rounded
from qtui_core.formats.spec import FloatFormat, IntFormat


def said(text: str, formats=None, saturate: bool | None = None) -> str:
    return summarize(describe_value(parse_value(text), saturate=saturate, formats=formats))


TRAINING = (FP32, BF16, FP16, E4M3, E5M2)


@pytest.mark.parametrize(
    ("text", "formats", "parts"),
    [
        ("0.1", None, ["No format here holds 0.1 exactly", "FP16 is off by 0.024 %",
                       "E4M3 by 1.6 %", "E3M0, E2M1 and the integers give 0",
                       "multiply by 4 or more"]),
        ("70000", TRAINING, ["70000 is exact in FP32 only", "BF16 is off by 0.21 %",
                             "FP16, E4M3 and E5M2 cannot reach it",
                             "FP16 ends at 65504 and gives inf", "divide by 2 or more"]),
        ("-1000", (E4M3,), ["-1000: E4M3 cannot reach it", "ends at -448 and cuts it off there",
                            "divide by 4 or more"]),
        ("1e-8", TRAINING, ["FP16, E4M3 and E5M2 give 0", "2^13 or more"]),
        ("0.3", TRAINING, ["inside every range, so more mantissa bits would bring it closer"]),
        ("1", None, ["1 is exact in every format here: nothing is lost"]),
        ("0", None, ["0 is exact in every format here but E8M0.",
                     "E8M0, a scale format, has no zero and gives 5.8775e-39."]),
        ("0", TRAINING, ["nothing is lost on this value."]),
        ("nan", None, ["E3M2, E2M3 and 6 more have no code for NaN"]),
        ("nan", TRAINING, ["NaN stays NaN in every format here"]),
        ("inf", TRAINING, ["inf survives in FP32, BF16 and 2 more",
                           "E4M3 cuts it to the largest number (448)"]),
        ("200", (INT8,), ["200: INT8 cannot reach it", "ends at 127"]),
        ("7", (E2M1,), ["E2M1 is off by 14 %", "half a step or less beyond the end of E2M1 "
                         "(E2M1 ends at 6), so more mantissa bits"]),
        ("-464", (FP16, E4M3), ["the end of E4M3 (E4M3 ends at -448) and inside every other"]),
        ("127.4", (INT8,), ["half a step or less beyond", "ends at 127", "a smaller step would"]),
        ("2.4", (INT8,), ["INT8 does not hold 2.4 exactly", "17 %", "a smaller step"]),
        ("0.5", None, ["0.5 is exact in every floating-point format here; the integers give "
                       "0, so multiply by 2 or more"]),
        ("-0.5", None, ["every floating-point format here but E8M0; the integers give 0"]),
        ("2", None, ["2 is exact in every floating-point format here; MXINT8 cannot reach it "
                     "(MXINT8 ends at 1.9844"]),
        ("-1", None, ["-1 is exact in every format here but E8M0. E8M0, a scale format, has no "
                      "sign and gives NaN."]),
        ("6", None, ["6 is exact in E2M1 and 17 more: E3M0 is off by 33 %; MXINT8 cannot reach"]),
        ("-0", None, ["-0 keeps its sign in FP64, FP32 and 11 more; E4M3FNUZ, E5M2FNUZ and 5 "
                      "more have one zero and drop it.", "E8M0, a scale format, has no zero"]),
        ("8", None, ["E2M3, E2M1 and 2 more cannot reach it"]),
        ("-1", (E8M0,), ["-1: E8M0, a scale format, has no sign and gives NaN."]),
        ("0", (E8M0,), ["0: E8M0, a scale format, has no zero and gives 5.8775e-39."]),
        ("1e-40", (E8M0,), ["1e-40: E8M0 has no number that small", "multiply by 64 or more"]),
        ("inf", (INT8,), ["inf: INT8 cuts it to the largest number (127)."]),
        ("-inf", (FP16, INT8, INT4), ["-inf survives in FP16; the integers cut it to the lowest "
                                      "number (INT8: -128)."]),
        ("nan", (INT8, E2M1), ["INT8 and E2M1 have no code for NaN"]),
        ("464", (E4M3, FP16), ["beyond the end of E4M3"]),
        ("-8.1", (INT4,), ["beyond the end of INT4 (INT4 ends at -8) and rounds to that"]),
        ("0.01", (E4M3,), ["E4M3 has only a subnormal with fewer bits for it, so multiply by 2"]),
    ],
)  # fmt: skip
def test_the_sentence_says_what_the_rows_say(text: str, formats, parts: list[str]) -> None:
    sentence = said(text, formats)
    for part in parts:
        assert part in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_without_saturation_the_sentence_names_nan() -> None:
    assert "E4M3 ends at 448 and gives NaN" in said("1e4", (FP16, E4M3), saturate=False)
    assert "E4M3 turns it into NaN" in said("inf", (FP16, E4M3), saturate=False)
    assert "INT8 ends at 127 and wraps to -56" in said("200", (INT8,), saturate=False)


def test_a_number_lifted_to_the_smallest_is_not_said_to_lack_mantissa_bits() -> None:
    rows = describe_value(parse_value("1e-9"), Rounding.UP, None, (E2M1, E4M3))
    assert summarize(rows) == (
        "No format here holds 1e-9 exactly: E4M3 is off by 2e+8 %, E2M1 by 5e+10 %; E4M3 and E2M1 "
        "have no number that small (E4M3 gives 1.9531e-3), so multiply by 2^24 or more before "
        "casting to E4M3."
    )


def test_without_saturation_integers_have_nothing_for_infinity() -> None:
    assert said("inf", (INT8, INT4), saturate=False) == (
        "inf: the integers have no code for it. Look for the overflow it came from."
    )


@pytest.mark.parametrize("text", ["70000", "-3e5", "1e-8", "-2e-7", "1e300", "5e-320", "1e-500"])
@pytest.mark.parametrize("fmt", [FP32, FP16, BF16, E4M3, E5M2, E2M1, INT8])
def test_the_scale_it_advises_brings_the_value_into_range(text: str, fmt) -> None:
    value = parse_value(text)
    sentence = said(text, (fmt,))
    if " or more before" not in sentence:
        return
    _, base, power = re.search(r"(divide|multiply) by (2\^)?(\d+)", sentence).groups()
    factor = Fraction(2) ** int(power) if base else Fraction(int(power))
    scaled = value / factor if "divide" in sentence else value * factor
    assert describe_value(scaled, formats=[fmt])[0].outcome in (Outcome.EXACT, Outcome.ROUNDED)
    short = scaled * 2 if "divide" in sentence else scaled / 4
    if "divide" in sentence:
        assert abs(short) > fmt.max


@pytest.mark.parametrize("fmt", [E2M1, E4M3, E5M2, FP16, INT8])
def test_inside_every_range_is_said_of_values_inside(fmt) -> None:
    end = Fraction(fmt.max)
    for value in (end * Fraction(k, 64) for k in range(-72, 73)):
        if "inside every range" in summarize(describe_value(value, formats=[fmt])):
            assert fmt.min <= value <= fmt.max


def test_no_rows_no_sentence() -> None:
    assert summarize(()) == ""


# --- every claim of the sentence against the rows, for any value, mode, saturation and subset


def numbers() -> st.SearchStrategy[Fraction | float]:
    """Numbers of every format, halfway between them, just beside them, and beyond all."""
    ends = [Fraction(end) for fmt in FORMATS.values() for end in (fmt.max, fmt.min_positive)]
    ends += [fmt.min_normal for fmt in FORMATS.values() if isinstance(fmt, FloatFormat)]
    factors = st.sampled_from([Fraction(k, 32) for k in (1, 8, 15, 16, 17, 24, 31, 32, 33, 40, 96)])
    simple = st.builds(Fraction, st.integers(-1280, 1280), st.integers(1, 64))
    signs = st.sampled_from([1, -1])
    at_ends = st.builds(lambda e, f, s: e * f * s, st.sampled_from(ends), factors, signs)
    nudged = st.builds(lambda x, k: x * (1 + Fraction(k, 10**6)), at_ends | simple, signs)
    doubles = st.floats().map(lambda x: Fraction(x) if math.isfinite(x) and x else x)
    huge = st.sampled_from([Fraction(10) ** 400, -(Fraction(10) ** -400)])
    return st.one_of(at_ends, simple, nudged, doubles, huge, st.integers(-300, 70000).map(Fraction))


SUBSETS = st.one_of(
    st.none(),
    st.lists(st.sampled_from(list(FORMATS.values())), min_size=1, max_size=6, unique=True),
)


@settings(max_examples=1500, deadline=None)
@given(numbers(), st.sampled_from(list(Rounding)), st.sampled_from([None, True, False]), SUBSETS)
@example(0.0, Rounding.NEAREST_EVEN, None, None)
@example(-0.0, Rounding.NEAREST_EVEN, None, None)
@example(math.nan, Rounding.NEAREST_EVEN, None, None)
@example(-math.inf, Rounding.NEAREST_EVEN, False, None)
@example(Fraction(24), Rounding.NEAREST_EVEN, False, [INT4])
def test_every_claim_is_true_of_the_rows(value, rounding, saturate, formats) -> None:
    rows = describe_value(value, rounding, saturate, formats)
    sentence = summarize(rows)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 400
    check(sentence, rows)


@settings(max_examples=1500, deadline=None)
@given(
    numbers(),
    st.sampled_from([r for r in Rounding if r is not Rounding.STOCHASTIC]),
    st.sampled_from([None, True, False]),
    st.sampled_from(list(FORMATS.values())),
)
def test_the_bits_it_asks_for_help_and_those_it_does_not_do_not(value, how, saturate, fmt) -> None:
    (row,) = describe_value(value, how, saturate, [fmt])
    if "would bring it closer" not in summarize([row]):
        return
    if isinstance(fmt, FloatFormat):
        finer = replace(fmt, mantissa_bits=fmt.mantissa_bits + 200)
        wider = replace(fmt, exponent_bits=fmt.exponent_bits + 1)
    else:
        finer = replace(fmt, bits=fmt.bits + 40, fraction_bits=fmt.fraction_bits + 40)
        wider = replace(fmt, bits=fmt.bits + 1)
    asked = Fraction(row.asked)
    assert abs(round_value(finer, asked, how, saturate) - asked) < abs(row.error)
    assert abs(round_value(wider, asked, how, saturate) - asked) >= abs(row.error)


def fate(row: FormatRow) -> str:
    """What became of the row's value, from the numbers alone and not from its outcome."""
    fmt, asked, value = row.format, row.asked, row.value
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
        """`text` lists the expected formats, all of them, and no other."""
        assert expected
        if text.startswith("every"):
            kind, _, but = text.partition(" but ")
            named = set(self.by_title)
            if kind == "every floating-point format here":
                named = {t for t in named if isinstance(self.by_title[t].format, FloatFormat)}
                # Beside the floating-point formats others may be exact, or not.
                expected = {t for t in expected if t in named}
            else:
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
    table, asked = Table(rows), rows[0].asked
    if is_nan(asked):
        if table.of("no code"):
            table.all_of(
                re.match(r"(.*) (has|have) no code for NaN", sentence)[1], table.of("no code")
            )
        else:
            place = re.match("NaN stays NaN in (.*), and in every", sentence)[1]
            table.all_of(place, table.of("kept"))
    elif is_infinite(asked):
        check_infinity(sentence, table, asked)
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
            check_negative_zero(body, table)
        else:
            check_number(body, table, asked)


def check_infinity(sentence: str, table: Table, asked: float) -> None:
    claims = {
        "kept": r"inf survives in (.*?)[;.]",
        "cut": r"(?:^|: |; )([^;:]*?) cuts? it to the (?:largest|lowest) number "
        r"\((?:(.*): )?(\S+)\)",
        "NaN": r"(?:^|: |; )([^;:]*?) turns? it into NaN",
        "no code": r"(?:^|: |; )([^;:]*?) (?:has|have) no code for it",
    }
    for name, pattern in claims.items():
        found, formats = re.search(pattern, sentence), table.of(name)
        assert bool(found) == bool(formats)
        if found:
            table.all_of(found[1], formats)
            if name == "cut":
                assert ("largest" in found[0]) == (asked > 0)
                title = found[2] or found[1]
                assert found[3] == format_rounded(table.by_title[title].value, 5)
    assert ("A cut hides" in sentence) == bool(table.of("cut"))


def check_negative_zero(body: str, table: Table) -> None:
    kept, lost = table.of("exact"), table.of("sign lost")
    if not lost:
        table.all_of(re.match("-0 is exact in ([^:]*)", body)[1], kept)
        return
    found = re.fullmatch(
        r"-0(?: keeps its sign in (.*?);|:) (.*) (?:has|have) one zero and drops? (?:it|its sign)",
        body,
    )
    table.all_of(found[2], lost)
    assert bool(found[1]) == bool(kept)
    if kept:
        table.all_of(found[1], kept)


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
    "beyond": r"it is half a step or less beyond the end of (.*?) \((.*) ends at (\S+)\)"
    r"( and inside every other range(?: but that of (.*))?)?"
    r"(?:, so (.*) would bring it closer, not a wider range| and rounds to that, as between two "
    r"steps)",
    "inside": r"it is inside every range(?: but that of (.*))?, so (.*) would bring it closer, "
    r"not a wider range",
}


def check_head(head: str, table: Table, exact: set[str]) -> None:
    head, _, near = head.partition(": ")
    if found := re.fullmatch(r"\S+ is exact in (.*?)( only)?", head):
        table.all_of(found[1], exact)
        assert bool(found[2]) <= (len(exact) == 1)
    else:
        assert re.fullmatch(r"No format here holds \S+ exactly|.* does not hold \S+ exactly", head)
        assert not exact
    for title, shown in re.findall(r"(?:^|, )(.*?) (?:is off )?by (\S+) %", near):
        row = table.by_title[title]
        assert row.relative_error is not None
        size = 100 * abs(row.relative_error)
        assert abs(Fraction(shown) - size) <= size / 20  # two digits
        assert size > 0


def check_clauses(said_of: dict[str, re.Match], table: Table, asked: Fraction) -> None:
    # What is said is true of the formats listed, and none is left out.
    for name, found in said_of.items():
        if name != "inside":
            table.all_of(found[1], table.of(name))
    # What takes the number away is said wherever it happens; the rest where that does not.
    worst = [name for name in ("high", "zeroed") if table.of(name)]
    for name in ("lifted", "subnormal", "beyond"):
        if not worst and table.of(name):
            worst = [name]
    assert list(said_of) == (worst or ["inside"])
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
    if found := said_of.get("beyond") or said_of.get("inside"):
        wanted, but = found.groups()[-1], found.groups()[-2]
        wanted = wanted or ""
        inexact = [table.by_title[t].format for t in table.of("beyond", "rounded")]
        # No step is small enough to move the lowest integer, see the test above.
        lowest = [f for f in inexact if isinstance(f, IntFormat) and asked < f.min]
        inexact = [f for f in inexact if f not in lowest]
        assert ("mantissa" in wanted) == any(isinstance(f, FloatFormat) for f in inexact)
        assert ("step" in wanted) == any(isinstance(f, IntFormat) for f in inexact)
        asked_of = [r for t, r in table.by_title.items() if table.fates[t] != "aside"]
        inside = [r.format.min <= asked <= r.format.max for r in asked_of]
        assert all(inside) == ("inside" in said_of)
        if all(inside) or any(inside):
            assert (but or "") == ", ".join(table.of("aside"))
        if "beyond" in said_of:
            assert any(inside) == bool(found[4])


def end_of(row: FormatRow) -> Fraction:
    return row.format.max if row.asked > 0 else row.format.min
