"""The sentence under a table agrees with its rows: for examples, and for every value."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
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
    FormatOutcome,
    Rounding,
    describe_value,
    parse_value,
    summarize,
)
from qtui_core.formats.spec import FloatFormat


def said(text: str, formats=None, saturate: bool | None = None) -> str:
    return summarize(describe_value(parse_value(text), saturate=saturate, formats=formats))


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
        ("0", TRAINING, ["nothing is lost on this value."]),
        ("nan", None, ["E3M2, E2M3 and 6 more have no code for it. Find where it"]),
        ("nan", TRAINING, ["NaN: FP32, BF16 and 3 more keep it."]),
        ("inf", TRAINING, ["inf: FP32, BF16 and 2 more keep it; E4M3 cuts it to 448. Find"]),
        ("200", (INT8,), ["200: INT8 cannot reach it", "ends at 127"]),
        ("7", (E2M1,), ["E2M1 makes 6 of 7, off by 14%", "half a step or less beyond the end of "
                         "E2M1 (E2M1 ends at 6)."]),
        ("-464", (FP16, E4M3), ["the end of E4M3 (E4M3 ends at -448)."]),
        ("127.4", (INT8,), ["half a step or less beyond", "ends at 127"]),
        ("2.4", (INT8,), ["INT8 makes 2 of 2.4, off by 17%; it is inside its range, so a "
                           "smaller step"]),
        ("0.5", None, ["0.5 is exact in E2M1 and ", "the integers give 0, so multiply by"]),
        ("2", None, ["MXINT8 cannot reach it (MXINT8 ends at 1.9844"]),
        ("-1", None, ["-1 is exact in every format here but E8M0. E8M0, a scale format, has no "
                      "sign and gives NaN."]),
        ("6", None, ["6 is exact in E2M1 and 17 more: E3M0 is off by 33%; MXINT8 cannot reach"]),
        ("-0", None, ["-0: FP64, FP32 and 11 more keep it; E4M3FNUZ, E5M2FNUZ and 5 more have "
                      "one zero and drop its sign.", "E8M0, a scale format, has no zero"]),
        ("8", None, ["E2M3, E2M1 and 2 more cannot reach it"]),
        ("-1", (E8M0,), ["-1: E8M0, a scale format, has no sign and gives NaN."]),
        ("0", (E8M0,), ["0: E8M0, a scale format, has no zero and gives 5.8775e-39."]),
        ("1e-40", (E8M0,), ["1e-40: E8M0 has no number that small", "multiply by 64 or more"]),
        ("inf", (INT8,), ["inf: INT8 cuts it to 127."]),
        ("-inf", (FP16, INT8, INT4), ["-inf: FP16 keeps it; the integers cut it to the end of "
                                      "their range (-128 in INT8)."]),
        ("nan", (INT8, E2M1), ["NaN: INT8 and E2M1 have no code for it."]),
        ("464", (E4M3, FP16), ["beyond the end of E4M3"]),
        ("-8.1", (INT4,), ["beyond the end of INT4 (INT4 ends at -8)."]),
        ("0.01", (E4M3,), ["E4M3 has only a subnormal with fewer bits for it, so multiply by 2"]),
    ],
)  # fmt: skip
def test_the_sentence_agrees_with_the_rows(text: str, formats, parts: list[str]) -> None:
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
        "No format here holds 1e-9 exactly: E4M3 is off by 2e+8%, E2M1 by 5e+10%; E4M3 and E2M1 "
        "have no number that small (E4M3 gives 1.9531e-3), so multiply by 2^24 or more before "
        "casting to E4M3."
    )


def test_without_saturation_integers_have_nothing_for_infinity() -> None:
    assert said("inf", (INT8, INT4), saturate=False) == (
        "inf: the integers have no code for it. Find where it comes from before casting."
    )


@over("text", ["70000", "-3e5", "1e-8", "-2e-7", "1e300", "5e-320", "1e-500"])
@over("fmt", [FP32, FP16, BF16, E4M3, E5M2, E2M1, INT8])
def test_the_scale_it_advises_brings_the_value_into_range(text: str, fmt) -> None:
    value = parse_value(text)
    sentence = said(text, (fmt,))
    if " or more before" not in sentence:
        return
    _, base, power = re.search(r"(divide|multiply) by (2\^)?(\d+)", sentence).groups()
    factor = Fraction(2) ** int(power) if base else Fraction(int(power))
    scaled = value / factor if "divide" in sentence else value * factor
    assert describe_value(scaled, formats=[fmt])[0].outcome in (
        FormatOutcome.EXACT,
        FormatOutcome.ROUNDED,
    )
    short = scaled * 2 if "divide" in sentence else scaled / 4
    if "divide" in sentence:
        assert abs(short) > fmt.max


@pytest.mark.parametrize("fmt", [E2M1, E4M3, E5M2, FP16, INT8])
def test_inside_every_range_is_said_of_values_inside(fmt) -> None:
    end = Fraction(fmt.max)
    for value in (end * Fraction(k, 64) for k in range(-72, 73)):
        if "inside its range" in summarize(describe_value(value, formats=[fmt])):
            assert fmt.min <= value <= fmt.max


def test_no_rows_no_sentence() -> None:
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
