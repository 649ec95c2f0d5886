"""The table of one value, and the sentence under it."""

import math
from fractions import Fraction

from every import over

import qtui_core.formats as qf

TENTH = Fraction(1, 10)


def row(fmt, value, rounding: qf.Rounding = qf.Rounding.NEAREST_EVEN, saturate: bool | None = None):
    return qf.describe_value(value, rounding, saturate, [fmt])[0]


def test_every_format_has_its_row_and_errors_are_from_what_was_typed() -> None:
    rows = qf.describe_value(TENTH)
    assert [r.format.name for r in rows] == list(qf.FORMATS)
    # Not from the FP64 nearest to it: FP64 itself shows an error.
    assert row(qf.FP64, qf.parse_value("0.1")).error == Fraction(0.1) - TENTH
    assert row(qf.FP64, 0.1).error == 0
    assert row(qf.FP16, 70000).error is None
    assert row(qf.FP16, 0).relative_error is None


@over(
    ("fmt", "bits", "hexadecimal", "value"),
    [
        (qf.FP32, ("0", "01111011", "10011001100110011001101"), "0x3dcccccd", 13421773 / 2**27),
        (qf.BF16, ("0", "01111011", "1001101"), "0x3dcd", 0.10009765625),
        (qf.FP16, ("0", "01011", "1001100110"), "0x2e66", 0.0999755859375),
        (qf.TF32, ("0", "01111011", "1001100110"), "0x3dccc000", 0.0999755859375),
        (qf.E4M3, ("0", "0011", "101"), "0x1d", 0.1015625),
        (qf.E5M2, ("0", "01011", "10"), "0x2e", 0.09375),
        (qf.E8M0, ("", "01111100", ""), "0x7c", 0.125),
        (qf.INT4, ("0", "", "000"), "0x0", 0),
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
        (qf.FP16, 0.5, None, qf.FormatOutcome.EXACT),
        (qf.FP16, 70000, None, qf.FormatOutcome.OVERFLOW),
        (qf.FP16, 70000, True, qf.FormatOutcome.SATURATED),
        (qf.FP16, 65510, None, qf.FormatOutcome.ROUNDED),
        (qf.FP16, math.inf, None, qf.FormatOutcome.EXACT),
        (qf.FP16, math.inf, True, qf.FormatOutcome.SATURATED),
        (qf.FP16, math.nan, None, qf.FormatOutcome.EXACT),
        (qf.FP16, 1e-8, None, qf.FormatOutcome.UNDERFLOW),
        (qf.E4M3, 1000, None, qf.FormatOutcome.SATURATED),
        (qf.E4M3, 1000, False, qf.FormatOutcome.OVERFLOW),
        (qf.E4M3, 460, False, qf.FormatOutcome.ROUNDED),
        (qf.E2M1, math.nan, None, qf.FormatOutcome.NOT_REPRESENTABLE),
        (qf.INT8, 127.4, None, qf.FormatOutcome.ROUNDED),
        (qf.INT8, 200, None, qf.FormatOutcome.SATURATED),
        (qf.INT8, 200, False, qf.FormatOutcome.OVERFLOW),
        (qf.INT8, math.inf, False, qf.FormatOutcome.NOT_REPRESENTABLE),
        (qf.E8M0, 0, None, qf.FormatOutcome.SATURATED),
        (qf.E8M0, 0, False, qf.FormatOutcome.NOT_REPRESENTABLE),
        (qf.E8M0, -1, None, qf.FormatOutcome.NOT_REPRESENTABLE),
        (qf.E8M0, 2.0**130, False, qf.FormatOutcome.OVERFLOW),
        (qf.E4M3, -0.0, None, qf.FormatOutcome.EXACT),
    ],
)
def test_the_outcome_is_named(fmt, value: float, saturate, outcome: qf.FormatOutcome) -> None:
    assert row(fmt, value, saturate=saturate).outcome is outcome


def test_a_row_and_its_surroundings() -> None:
    r = row(qf.E4M3, TENTH)
    assert (r.below, r.above, r.ulp) == (Fraction(3, 32), Fraction(7, 64), Fraction(1, 128))
    assert (r.kind, r.decoded.exponent, r.decoded.significand) == (
        qf.Kind.NORMAL,
        -4,
        Fraction(13, 8),
    )
    empty = row(qf.E2M1, math.nan)
    assert (empty.code, empty.value, empty.kind, empty.decoded) == (None,) * 4
    assert (empty.hex, empty.sign_bits) == ("", "")
    code = qf.describe_code(qf.E4M3, 0xFF)
    assert (code.kind, code.outcome) == (qf.Kind.NAN, qf.FormatOutcome.EXACT)
    assert (code.below, code.ulp) == (None, None)
    assert (code.sign_bits, code.exponent_bits, code.mantissa_bits) == ("1", "1111", "111")
    assert qf.describe_code(qf.FP16, 0x7BFF).above == math.inf


def test_rounding_modes_reach_the_table() -> None:
    assert row(qf.E4M3, TENTH, qf.Rounding.DOWN).value == Fraction(3, 32)
    assert row(qf.E4M3, TENTH, qf.Rounding.UP).value == Fraction(13, 128)
    drawn = {
        qf.describe_value(TENTH, qf.Rounding.STOCHASTIC, None, [qf.E4M3], r, 8)[0].value
        for r in range(256)
    }
    assert drawn == {Fraction(3, 32), Fraction(13, 128)}
    assert row(qf.E4M3, TENTH, qf.Rounding.STOCHASTIC).value == Fraction(13, 128)  # the middle draw
