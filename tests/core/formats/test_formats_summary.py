"""The sentence under a table agrees with its rows: for examples, and for every value."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from every import drawn, over
from formats_claims import check
from hypothesis import strategies as st
from shorthands import round_value

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
    Rounding,
    describe_value,
    parse_value,
    summarize,
)
from qtui_core.formats.spec import FloatFormat

TRAINING = (FP32, BF16, FP16, E4M3, E5M2)


@over(
    ("text", "formats", "parts"),
    [
        ("0.1", None, ["No format here holds 0.1 exactly", "FP16 is off by 0.024%",
                       "E4M3 by 1.6%", "E3M0, E2M1 and the integers give 0",
                       "multiply by 4 or more"]),
        ("70000", TRAINING, ["70000 is exact in FP32 only", "BF16 is off by 0.21%",
                             "FP16, E4M3 and E5M2 cannot reach it",
                             "FP16 ends at 65504 and gives inf", "divide by 2 or more"]),
        ("-1000", (E4M3,), ["-1000: E4M3 cannot reach it", "ends at -448 and cuts it off there",
                            "divide by 4 or more"]),
        ("1e-8", TRAINING, ["FP16, E4M3 and E5M2 give 0", "2^13 or more"]),
        ("0.3", TRAINING, ["inside every range, so more mantissa bits would bring it closer"]),
        ("1", None, ["1 is exact in every format here: nothing is lost"]),
        ("0", None, ["0 is exact in every format here but E8M0.",
                     "E8M0, a scale format, has no zero and gives 5.8775e-39."]),
        ("nan", None, ["E3M2, E2M3 and 6 more have no code for it. Find where it"]),
        ("inf", TRAINING, ["inf: FP32, BF16 and 2 more keep it; E4M3 cuts it to 448. Find"]),
        ("7", (E2M1,), ["E2M1 makes 6 of 7, off by 14%", "half a step or less beyond the end of "
                         "E2M1 (E2M1 ends at 6)."]),
        ("2.4", (INT8,), ["INT8 makes 2 of 2.4, off by 17%; it is inside its range, so a "
                           "smaller step"]),
        ("-0", None, ["-0: FP64, FP32 and 11 more keep it; E4M3FNUZ, E5M2FNUZ and 5 more have "
                      "one zero and drop its sign.", "E8M0, a scale format, has no zero"]),
        ("-1", (E8M0,), ["-1: E8M0, a scale format, has no sign and gives NaN."]),
        ("1e-40", (E8M0,), ["1e-40: E8M0 has no number that small", "multiply by 64 or more"]),
        ("-inf", (FP16, INT8, INT4), ["-inf: FP16 keeps it; the integers cut it to the end of "
                                      "their range (-128 in INT8)."]),
        ("0.01", (E4M3,), ["E4M3 has only a subnormal with fewer bits for it, so multiply by 2"]),
    ],
)  # fmt: skip
def test_the_sentence_agrees_with_the_rows(text: str, formats, parts: list[str]) -> None:
    sentence = summarize(describe_value(parse_value(text), formats=formats))
    for part in parts:
        assert part in sentence


@over(
    ("text", "formats", "part"),
    [
        ("1e4", (FP16, E4M3), "E4M3 ends at 448 and gives NaN"),
        ("inf", (FP16, E4M3), "E4M3 turns it into NaN"),
        ("200", (INT8,), "INT8 ends at 127 and wraps to -56"),
        ("inf", (INT8, INT4), "inf: the integers have no code for it. Find where it comes from"),
    ],
)
def test_the_sentence_without_saturation(text: str, formats, part: str) -> None:
    rows = describe_value(parse_value(text), saturate=False, formats=formats)
    assert part in summarize(rows)


def test_a_number_lifted_to_the_smallest_is_not_said_to_lack_mantissa_bits() -> None:
    rows = describe_value(parse_value("1e-9"), Rounding.UP, None, (E2M1, E4M3))
    assert summarize(rows) == (
        "No format here holds 1e-9 exactly: E4M3 is off by 2e+8%, E2M1 by 5e+10%; E4M3 and E2M1 "
        "have no number that small (E4M3 gives 1.9531e-3), so multiply by 2^24 or more before "
        "casting to E4M3."
    )
    assert summarize(()) == ""


# --- every claim of the sentence, for any value, mode, saturation and subset of formats


def numbers() -> st.SearchStrategy[Fraction | float]:
    """Numbers of every format, midpoints, their neighbours, and numbers beyond all."""
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


@drawn(
    1500,
    4,
    numbers(),
    st.sampled_from(list(Rounding)),
    st.sampled_from([None, True, False]),
    SUBSETS,
    also=[
        (0.0, Rounding.NEAREST_EVEN, None, None),
        (-0.0, Rounding.NEAREST_EVEN, None, None),
        (math.nan, Rounding.NEAREST_EVEN, None, None),
        (-math.inf, Rounding.NEAREST_EVEN, False, None),
        (Fraction(24), Rounding.NEAREST_EVEN, False, [INT4]),
    ],
)
def test_every_claim_is_true_of_the_rows(value, rounding, saturate, formats) -> None:
    rows = describe_value(value, rounding, saturate, formats)
    sentence = summarize(rows)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 400
    check(sentence, rows)


@drawn(
    1500,
    4,
    numbers(),
    st.sampled_from([r for r in Rounding if r is not Rounding.STOCHASTIC]),
    st.sampled_from([None, True, False]),
    st.sampled_from(list(FORMATS.values())),
)
def test_advised_mantissa_bits_help_and_others_do_not(value, how, saturate, fmt) -> None:
    (row,) = describe_value(value, how, saturate, [fmt])
    if "would bring it closer" not in summarize([row]):
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
