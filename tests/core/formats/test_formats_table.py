"""The table of one value, and the sentence under it."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from qtui_core.formats import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    INT4,
    INT8,
    TF32,
    Kind,
    Outcome,
    Rounding,
    describe_code,
    describe_value,
    parse_value,
    summarize,
)

TENTH = Fraction(1, 10)


def row(fmt, value, rounding: Rounding = Rounding.NEAREST_EVEN, saturate: bool | None = None):
    return describe_value(value, rounding, saturate, [fmt])[0]


def test_every_format_has_its_row_in_order() -> None:
    rows = describe_value(TENTH)
    assert [r.format.name for r in rows] == list(FORMATS)


@pytest.mark.parametrize(
    ("fmt", "bits", "hexadecimal", "value"),
    [
        (FP32, ("0", "01111011", "10011001100110011001101"), "0x3dcccccd", 13421773 / 2**27),
        (BF16, ("0", "01111011", "1001101"), "0x3dcd", 0.10009765625),
        (FP16, ("0", "01011", "1001100110"), "0x2e66", 0.0999755859375),
        (TF32, ("0", "01111011", "1001100110"), "0x3dccc000", 0.0999755859375),
        (E4M3, ("0", "0011", "101"), "0x1d", 0.1015625),
        (E5M2, ("0", "01011", "10"), "0x2e", 0.09375),
        (E8M0, ("", "01111100", ""), "0x7c", 0.125),
        (INT4, ("0", "", "000"), "0x0", 0),
    ],
)
def test_one_tenth_in_each(fmt, bits, hexadecimal: str, value: float) -> None:
    r = row(fmt, TENTH)
    assert (r.sign_bits, r.exponent_bits, r.mantissa_bits) == bits
    assert (r.hex, r.value) == (hexadecimal, value)
    assert r.error == Fraction(value) - TENTH
    assert r.relative_error == (Fraction(value) - TENTH) / TENTH


def test_one_tenth_in_e4m3_with_its_surroundings() -> None:
    r = row(E4M3, TENTH)
    assert (r.below, r.above, r.ulp) == (Fraction(3, 32), Fraction(7, 64), Fraction(1, 128))
    assert (r.kind, r.outcome) == (Kind.NORMAL, Outcome.ROUNDED)
    assert r.decoded is not None
    assert (r.decoded.exponent, r.decoded.significand) == (-4, Fraction(13, 8))


@pytest.mark.parametrize(
    ("fmt", "value", "saturate", "outcome"),
    [
        (FP16, 0.5, None, Outcome.EXACT),
        (FP16, 70000, None, Outcome.OVERFLOW),
        (FP16, 70000, True, Outcome.SATURATED),
        (FP16, 65510, None, Outcome.ROUNDED),
        (FP16, math.inf, None, Outcome.EXACT),
        (FP16, math.inf, True, Outcome.SATURATED),
        (FP16, math.nan, None, Outcome.EXACT),
        (FP16, 1e-8, None, Outcome.UNDERFLOW),
        (E4M3, 1000, None, Outcome.SATURATED),
        (E4M3, 1000, False, Outcome.OVERFLOW),
        (E4M3, 460, False, Outcome.ROUNDED),
        (E2M1, math.nan, None, Outcome.NOT_REPRESENTABLE),
        (INT8, 127.4, None, Outcome.ROUNDED),
        (INT8, 200, None, Outcome.SATURATED),
        (INT8, 200, False, Outcome.OVERFLOW),
        (INT8, math.inf, False, Outcome.NOT_REPRESENTABLE),
        (E8M0, 0, None, Outcome.SATURATED),
        (E8M0, 0, False, Outcome.NOT_REPRESENTABLE),
        (E8M0, -1, None, Outcome.NOT_REPRESENTABLE),
        (E8M0, 2.0**130, False, Outcome.OVERFLOW),
        (E4M3, -0.0, None, Outcome.EXACT),
    ],
)
def test_what_happened_is_named(fmt, value: float, saturate, outcome: Outcome) -> None:
    assert row(fmt, value, saturate=saturate).outcome is outcome


def test_where_no_code_stands_for_the_value_the_row_is_empty() -> None:
    r = row(E2M1, math.nan)
    assert (r.code, r.value, r.kind, r.decoded, r.hex, r.sign_bits) == (
        None, None, None, None, "", "",
    )  # fmt: skip


def test_errors_are_measured_from_what_was_typed() -> None:
    # Not from the FP64 nearest to it: FP64 itself shows an error.
    assert row(FP64, parse_value("0.1")).error == Fraction(0.1) - TENTH
    assert row(FP64, 0.1).error == 0
    assert row(FP16, 70000).error is None
    assert row(FP16, 0).relative_error is None


def test_rounding_modes_reach_the_table() -> None:
    assert row(E4M3, TENTH, Rounding.DOWN).value == Fraction(3, 32)
    assert row(E4M3, TENTH, Rounding.UP).value == Fraction(13, 128)
    drawn = {
        describe_value(TENTH, Rounding.STOCHASTIC, None, [E4M3], r, 8)[0].value for r in range(256)
    }
    assert drawn == {Fraction(3, 32), Fraction(13, 128)}
    assert row(E4M3, TENTH, Rounding.STOCHASTIC).value == Fraction(13, 128)  # the middle draw


def test_a_code_describes_itself() -> None:
    r = describe_code(E4M3, 0xFF)
    assert (r.kind, r.outcome, r.below, r.ulp) == (Kind.NAN, Outcome.EXACT, None, None)
    assert (r.sign_bits, r.exponent_bits, r.mantissa_bits) == ("1", "1111", "111")
    assert describe_code(FP16, 0x7BFF).above == math.inf


def said(text: str, formats=None, saturate: bool | None = None) -> str:
    return summarize(describe_value(parse_value(text), saturate=saturate, formats=formats))


TRAINING = (FP32, BF16, FP16, E4M3, E5M2)


@pytest.mark.parametrize(
    ("text", "formats", "parts"),
    [
        ("0.1", None, ["No format here holds 0.1 exactly", "FP16 is off by 0.024 %",
                       "E4M3 by 1.6 %", "E3M0 and E2M1 turn it into 0", "multiply by 4 or more"]),
        ("70000", TRAINING, ["70000 is exact in FP32 only", "BF16 is off by 0.21 %",
                             "FP16, E4M3 and E5M2 cannot reach it",
                             "FP16 ends at 65504 and gives inf", "divide by 2 or more"]),
        ("-1000", (E4M3,), ["-1000: E4M3 cannot reach it", "ends at -448 and cuts it off there",
                            "divide by 4 or more"]),
        ("1e-8", TRAINING, ["FP16, E4M3 and E5M2 turn it into 0", "2^13 or more"]),
        ("0.3", TRAINING, ["inside every range, so only more mantissa bits"]),
        ("1", None, ["1 is exact in every format here: nothing is lost"]),
        ("0", None, ["0 is exact in every format here", "E8M0 is a scale, has no zero"]),
        ("0", TRAINING, ["nothing is lost on this value."]),
        ("nan", None, ["E3M2, E2M3 and 2 more have no code for NaN"]),
        ("nan", TRAINING, ["NaN stays NaN in every format here"]),
        ("inf", TRAINING, ["inf survives in FP32, BF16 and 2 more",
                           "E4M3 cuts it to the largest number (448)"]),
        ("200", (INT8,), ["200: INT8 cannot reach it", "ends at 127"]),
        ("7", (E2M1,), ["E2M1 is off by 14 %", "half a step or less beyond the end of E2M1 "
                         "(E2M1 ends at 6), so only more mantissa bits"]),
        ("-464", (FP16, E4M3), ["the end of E4M3 (E4M3 ends at -448) and inside every other"]),
        ("127.4", (INT8,), ["half a step or less beyond", "ends at 127", "only more bits"]),
        ("2.4", (INT8,), ["INT8 does not hold 2.4 exactly", "17 %", "a smaller step"]),
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


@pytest.mark.parametrize("text", ["70000", "-3e5", "1e-8", "-2e-7", "1e300", "5e-320", "1e-500"])
@pytest.mark.parametrize("fmt", [FP32, FP16, BF16, E4M3, E5M2, E2M1, INT8])
def test_the_scale_it_advises_brings_the_value_into_range(text: str, fmt) -> None:
    value = parse_value(text)
    sentence = said(text, (fmt,))
    if " or more before" not in sentence:
        return
    factor_text = sentence.split(" by ")[1].split(" or more")[0]
    power = factor_text.removeprefix("2^")
    factor = Fraction(2) ** int(power) if power != factor_text else Fraction(int(power))
    scaled = value / factor if "divide" in sentence else value * factor
    assert row(fmt, scaled).outcome in (Outcome.EXACT, Outcome.ROUNDED)
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
