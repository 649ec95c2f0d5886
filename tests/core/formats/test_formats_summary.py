"""The sentence under a table agrees with its rows: for examples, and for every value."""

import math
import re
from dataclasses import replace
from fractions import Fraction

from every import drawn, over
from hypothesis import strategies as st
from shorthands import round_value

import qtui_core.formats as qf
from qtui_core.formats.spec import FloatFormat

TRAINING = (qf.FP32, qf.BF16, qf.FP16, qf.E4M3, qf.E5M2)


@over(
    ("text", "formats", "parts"),
    [
        ("0.1", None, ["No format here holds 0.1 exactly", "FP16 is off by 0.024%",
                       "E4M3 by 1.6%", "E3M0, E2M1 and the integers give 0",
                       "multiply by 4 or more"]),
        ("70000", TRAINING, ["70000 is exact in FP32 only", "BF16 is off by 0.21%",
                             "FP16, E4M3 and E5M2 cannot reach it",
                             "FP16 ends at 65504 and gives inf", "divide by 2 or more"]),
        ("-1000", (qf.E4M3,), ["-1000: E4M3 cannot reach it", "ends at -448 and cuts it off there",
                            "divide by 4 or more"]),
        ("1e-8", TRAINING, ["FP16, E4M3 and E5M2 give 0", "2^13 or more"]),
        ("0.3", TRAINING, ["inside every range, so more mantissa bits would bring it closer"]),
        ("1", None, ["1 is exact in every format here: nothing is lost"]),
        ("0", None, ["0 is exact in every format here but E8M0.",
                     "E8M0, a scale format, has no zero and gives 5.8775e-39."]),
        ("nan", None, ["E3M2, E2M3 and 6 more have no code for it. Find where it"]),
        ("inf", TRAINING, ["inf: FP32, BF16 and 2 more keep it; E4M3 cuts it to 448. Find"]),
        ("7", (qf.E2M1,), ["E2M1 makes 6 of 7, off by 14%", "half a step or less beyond the end of "
                         "E2M1 (E2M1 ends at 6)."]),
        ("2.4", (qf.INT8,), ["INT8 makes 2 of 2.4, off by 17%; it is inside its range, so a "
                           "smaller step"]),
        ("-0", None, ["-0: FP64, FP32 and 11 more keep it; E4M3FNUZ, E5M2FNUZ and 5 more have "
                      "one zero and drop its sign.", "E8M0, a scale format, has no zero"]),
        ("-1", (qf.E8M0,), ["-1: E8M0, a scale format, has no sign and gives NaN."]),
        ("1e-40", (qf.E8M0,), ["1e-40: E8M0 has no number that small", "multiply by 64 or more"]),
        ("-inf", (qf.FP16, qf.INT8, qf.INT4), ["-inf: FP16 keeps it; the integers cut it to the "
                                               "end of their range (-128 in INT8)."]),
        ("0.01", (qf.E4M3,), ["E4M3 has only a subnormal with fewer bits for it, so multiply by"]),
    ],
)  # fmt: skip
def test_the_sentence_agrees_with_the_rows(text: str, formats, parts: list[str]) -> None:
    sentence = qf.summarize(qf.describe_value(qf.parse_value(text), formats=formats))
    for part in parts:
        assert part in sentence


@over(
    ("text", "formats", "part"),
    [
        ("1e4", (qf.FP16, qf.E4M3), "E4M3 ends at 448 and gives NaN"),
        ("inf", (qf.FP16, qf.E4M3), "E4M3 turns it into NaN"),
        ("200", (qf.INT8,), "INT8 ends at 127 and wraps to -56"),
        (
            "inf",
            (qf.INT8, qf.INT4),
            "inf: the integers have no code for it. Find where it comes from",
        ),
    ],
)
def test_the_sentence_without_saturation(text: str, formats, part: str) -> None:
    rows = qf.describe_value(qf.parse_value(text), saturate=False, formats=formats)
    assert part in qf.summarize(rows)


def test_a_number_lifted_to_the_smallest_is_not_said_to_lack_mantissa_bits() -> None:
    rows = qf.describe_value(qf.parse_value("1e-9"), qf.Rounding.UP, None, (qf.E2M1, qf.E4M3))
    assert qf.summarize(rows) == (
        "No format here holds 1e-9 exactly: E4M3 is off by 2e+8%, E2M1 by 5e+10%; E4M3 and E2M1 "
        "have no number that small (E4M3 gives 1.9531e-3), so multiply by 2^24 or more before "
        "casting to E4M3."
    )
    assert qf.summarize(()) == ""


# --- every claim of the sentence, for any value, mode, saturation and subset of formats


def fate(row: qf.FormatRow) -> str:
    """What happened to the row's value, derived from its numbers and not from its `outcome`."""
    fmt, asked, value = row.format, row.given, row.value
    if asked != asked:  # a Fraction may be too large for math.isnan
        return "kept" if value is not None else "no code"
    if asked in (math.inf, -math.inf):
        if value is None:
            return "no code"
        return "kept" if value == asked else "NaN" if math.isnan(value) else "cut"
    if (asked == 0 and not fmt.has_zero) or (asked < 0 and not fmt.signed):
        return "aside"
    if value == asked:
        signed = isinstance(value, float) and math.copysign(1, value) < 0
        return "sign lost" if isinstance(asked, float) and not signed else "exact"
    if value is None or not math.isfinite(value):
        return "high"
    if not fmt.min <= asked <= fmt.max and abs(asked) >= fmt.min_positive:
        end, exponent = fmt.max if asked > 0 else fmt.min, 0
        while isinstance(fmt, FloatFormat) and Fraction(2) ** (exponent + 1) <= abs(end):
            exponent += 1
        step = getattr(fmt, "step", None) or Fraction(2) ** (exponent - fmt.mantissa_bits)
        return "beyond" if value == end and abs(asked - end) <= step / 2 else "high"
    if value == 0:
        return "zeroed"
    if abs(asked) < fmt.min_positive:
        return "lifted"
    tiny = isinstance(fmt, FloatFormat) and abs(asked) < fmt.min_normal
    return "subnormal" if tiny else "rounded"


#: The worst that happened to a number is said, and only that.
WORST = ("high", "zeroed", "lifted", "subnormal", "beyond")
CLAIMS = {
    "high": r"(.*) cannot reach it \(.*?\)(?:, so divide .*)?",
    "zeroed": r"(.*) gives? 0, so multiply .*",
    "lifted": r"(.*) (?:has|have) no number that small \(.*\), so multiply .*",
    "subnormal": r"(.*) (?:has|have) only a subnormal with fewer bits for it, so multiply .*",
    "beyond": r"it is half a step or less beyond the end of (.*?) \(.*\)",
    "inside": r"it is inside (?:its|every) range.*, so .* would bring it closer, not a wider range",
    "kept": "(.*) keeps? it",
    "sign lost": "(.*) (?:has|have) one zero and drops? its sign",
    "cut": r"(.*) cuts? it to .*",
    "NaN": "(.*) turns? it into NaN",
    "no code": "(.*) (?:has|have) no code for it",
}


def check(sentence: str, rows) -> None:
    fates = {row.format.title: fate(row) for row in rows}
    by_title = {row.format.title: row for row in rows}
    asked, number = rows[0].given, isinstance(rows[0].given, Fraction)
    notes = re.findall(r"(?:^| )([A-Z0-9]+), a scale format, has no (zero|sign) and", sentence)
    assert notes == [(t, "sign" if asked else "zero") for t, f in fates.items() if f == "aside"]
    if len(notes) == len(rows):
        return
    body = sentence.partition(" E8M0, a scale")[0].removesuffix(".").partition(". ")[0]
    said = {}
    for clause in re.split(r"; |(?<=\S): (?=[^n])", body):
        if exact := re.match(r"\S+ is exact in (.*?)(?: only)?(?:: nothing.*)?$", clause):
            all_of(exact[1], fates, by_title, {"exact"})
        for name, pattern in CLAIMS.items():
            if found := re.fullmatch(pattern, clause):
                said[name] = clause
                if name != "inside":
                    all_of(found[1], fates, by_title, {name, "exact"} if name == "kept" else {name})
    left = set(fates.values()) - {"aside"}
    if not number:
        assert set(said) == {"kept" if name == "exact" else name for name in left}
    elif left != {"exact"}:
        worst = [name for name in WORST if name in left]
        assert list(said) == (worst[:1] or ["inside"])
    for clause in said.values():
        if found := re.search(
            r"(divide|multiply) by (2\^)?(\d+) or more before.* to (.+)$", clause
        ):
            fmt, by = by_title[found[4]].format, int(found[3])
            by = Fraction(2) ** by if found[2] else Fraction(by)
            if found[1] == "divide":
                assert fmt.min <= asked / by <= fmt.max
                assert not fmt.min <= 2 * asked / by <= fmt.max
            else:
                full = fmt.min_normal if isinstance(fmt, FloatFormat) else fmt.step
                assert full <= abs(asked) * by < 2 * full


def all_of(text: str, fates, by_title, wanted: set[str]) -> None:
    """Checks that `text` lists all formats with these fates, and no others."""
    expected = {title for title, became in fates.items() if became in wanted}
    if text.startswith("every format here"):
        but = text.partition(" but ")[2]
        assert set(by_title) - set(filter(None, but.split(", "))) == expected
        return
    listed, more = set(), 0
    for entry in re.split(", | and ", text):
        if count := re.fullmatch(r"(\d+) more", entry):
            more = int(count[1])
        elif entry == "the integers":
            listed |= {title for title in by_title if re.fullmatch(r"INT\d+", title)}
        else:
            listed.add(entry)
    assert listed <= expected
    assert len(listed) + more == len(expected)


def numbers() -> st.SearchStrategy[Fraction | float]:
    """Numbers of every format, midpoints, their neighbours, and numbers beyond all."""
    ends = [Fraction(end) for fmt in qf.FORMATS.values() for end in (fmt.max, fmt.min_positive)]
    ends += [fmt.min_normal for fmt in qf.FORMATS.values() if isinstance(fmt, FloatFormat)]
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
    st.lists(st.sampled_from(list(qf.FORMATS.values())), min_size=1, max_size=6, unique=True),
)


@drawn(
    1500,
    4,
    numbers(),
    st.sampled_from(list(qf.Rounding)),
    st.sampled_from([None, True, False]),
    SUBSETS,
    also=[
        (0.0, qf.Rounding.NEAREST_EVEN, None, None),
        (-0.0, qf.Rounding.NEAREST_EVEN, None, None),
        (math.nan, qf.Rounding.NEAREST_EVEN, None, None),
        (-math.inf, qf.Rounding.NEAREST_EVEN, False, None),
        (Fraction(24), qf.Rounding.NEAREST_EVEN, False, [qf.INT4]),
    ],
)
def test_every_claim_is_true_of_the_rows(value, rounding, saturate, formats) -> None:
    rows = qf.describe_value(value, rounding, saturate, formats)
    sentence = qf.summarize(rows)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 400
    check(sentence, rows)


@drawn(
    1500,
    4,
    numbers(),
    st.sampled_from([r for r in qf.Rounding if r is not qf.Rounding.STOCHASTIC]),
    st.sampled_from([None, True, False]),
    st.sampled_from(list(qf.FORMATS.values())),
)
def test_advised_mantissa_bits_help_and_others_do_not(value, how, saturate, fmt) -> None:
    (row,) = qf.describe_value(value, how, saturate, [fmt])
    if "would bring it closer" not in qf.summarize([row]):
        return
    if isinstance(fmt, FloatFormat):
        finer = replace(fmt, mantissa_bits=fmt.mantissa_bits + 200)
        wider = replace(fmt, exponent_bits=fmt.exponent_bits + 1)
    else:
        finer = replace(fmt, bits=fmt.bits + 40, fraction_bits=fmt.fraction_bits + 40)
        wider = replace(fmt, bits=fmt.bits + 1)
    asked = Fraction(row.given)
    assert abs(round_value(finer, asked, how, saturate) - asked) < abs(row.error)
    assert abs(round_value(wider, asked, how, saturate) - asked) >= abs(row.error)
