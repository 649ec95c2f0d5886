"""The table of one value, and the sentence under it."""

import math
from fractions import Fraction

from every import over

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
    FormatOutcome,
    Kind,
    Rounding,
    describe_code,
    describe_value,
    parse_value,
)

TENTH = Fraction(1, 10)


def row(fmt, value, rounding: Rounding = Rounding.NEAREST_EVEN, saturate: bool | None = None):
    return describe_value(value, rounding, saturate, [fmt])[0]


def test_every_format_has_its_row_in_order() -> None:
    rows = describe_value(TENTH)
    assert [r.format.name for r in rows] == list(FORMATS)


@over(
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


@over(
    ("fmt", "value", "saturate", "outcome"),
    [
        (FP16, 0.5, None, FormatOutcome.EXACT),
        (FP16, 70000, None, FormatOutcome.OVERFLOW),
        (FP16, 70000, True, FormatOutcome.SATURATED),
        (FP16, 65510, None, FormatOutcome.ROUNDED),
        (FP16, math.inf, None, FormatOutcome.EXACT),
        (FP16, math.inf, True, FormatOutcome.SATURATED),
        (FP16, math.nan, None, FormatOutcome.EXACT),
        (FP16, 1e-8, None, FormatOutcome.UNDERFLOW),
        (E4M3, 1000, None, FormatOutcome.SATURATED),
        (E4M3, 1000, False, FormatOutcome.OVERFLOW),
        (E4M3, 460, False, FormatOutcome.ROUNDED),
        (E2M1, math.nan, None, FormatOutcome.NOT_REPRESENTABLE),
        (INT8, 127.4, None, FormatOutcome.ROUNDED),
        (INT8, 200, None, FormatOutcome.SATURATED),
        (INT8, 200, False, FormatOutcome.OVERFLOW),
        (INT8, math.inf, False, FormatOutcome.NOT_REPRESENTABLE),
        (E8M0, 0, None, FormatOutcome.SATURATED),
        (E8M0, 0, False, FormatOutcome.NOT_REPRESENTABLE),
        (E8M0, -1, None, FormatOutcome.NOT_REPRESENTABLE),
        (E8M0, 2.0**130, False, FormatOutcome.OVERFLOW),
        (E4M3, -0.0, None, FormatOutcome.EXACT),
    ],
)
def test_the_outcome_is_named(fmt, value: float, saturate, outcome: FormatOutcome) -> None:
    assert row(fmt, value, saturate=saturate).outcome is outcome


def test_a_row_and_its_surroundings() -> None:
    r = row(E4M3, TENTH)
    assert (r.below, r.above, r.ulp) == (Fraction(3, 32), Fraction(7, 64), Fraction(1, 128))
    assert (r.kind, r.decoded.exponent, r.decoded.significand) == (Kind.NORMAL, -4, Fraction(13, 8))
    empty = row(E2M1, math.nan)
    assert (empty.code, empty.value, empty.kind, empty.decoded) == (None,) * 4
    assert (empty.hex, empty.sign_bits) == ("", "")
    code = describe_code(E4M3, 0xFF)
    assert (code.kind, code.outcome) == (Kind.NAN, FormatOutcome.EXACT)
    assert (code.below, code.ulp) == (None, None)
    assert (code.sign_bits, code.exponent_bits, code.mantissa_bits) == ("1", "1111", "111")
    assert describe_code(FP16, 0x7BFF).above == math.inf


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
