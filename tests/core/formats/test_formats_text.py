"""Which texts are accepted, what they mean exactly, and how others are refused."""

import math
from fractions import Fraction

import pytest
from every import over
from hypothesis import given
from hypothesis import strategies as st
from shorthands import round_value

import qtui_core.formats as qf
from qtui_core.errors import UsageError
from qtui_core.formats.decimals import floor_log10

NUMBERS = {
    "0.1": Fraction(1, 10),
    "  +2.5E2 ": Fraction(250),
    "-1/3": Fraction(-1, 3),
    "1.5/2e3": Fraction(3, 4000),
    ".5": Fraction(1, 2),
    "1_000_000": Fraction(10**6),
    "−7": Fraction(-7),
    "-0x.8P-1": Fraction(-1, 4),
    "0x1p-1074": Fraction(1, 2**1074),
    "inf": math.inf,
    "0": Fraction(0),
}


@over(("text", "value"), NUMBERS.items())
def test_numbers_are_read_exactly(text: str, value: Fraction | float) -> None:
    assert qf.parse_value(text) == value


def test_minus_zero_and_nan() -> None:
    for text in ("-0", "-0.0", "-0e5", "-0x0p0"):
        value = qf.parse_value(text)
        assert isinstance(value, float)
        assert math.copysign(1, value) == -1
    assert math.isnan(qf.parse_value("NaN"))
    assert math.copysign(1, qf.parse_value("-nan")) == -1
    assert isinstance(qf.parse_value("-0/5"), Fraction)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_prints_is_read_back(value: float) -> None:
    assert float(qf.parse_value(repr(value))) == value
    assert qf.parse_value(value.hex()) == value


BAD_NUMBERS = {
    "is not a number": ["abc", "1,5", "1/2/3", "inf/2", "\u0661"],
    "'' is not a number. Type a number such as 0.1": [""],
    "divides by zero": ["1/0"],
    "far outside every format": ["1e999999999", "0x1p" + "9" * 50],
    "exponents go from -2000 to 2000": ["1e-2001"],
    "has 2001 characters; at most 2000": ["9" * 2001],
    "is a bit pattern, not a number": ["0x3d"],
}


@over(("sentence", "texts"), BAD_NUMBERS.items())
def test_bad_numbers_get_one_sentence(sentence: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=sentence) as caught:
            qf.parse_value(text)
        assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (qf.parse_value, qf.parse_input, lambda t: qf.parse_code(qf.TF32, t)):
        try:
            parse(text)
        except UsageError:
            continue


@over(
    ("fmt", "text", "code"),
    [
        (qf.E4M3, "0x3D", 0x3D),
        (qf.E4M3, "0b0 | 0111 | 101", 0x3D),
        (qf.E2M1, "0b1", 1),
        (qf.FP32, "0x3dcccccd", 0x3DCCCCCD),
        (qf.TF32, "0x3dccc000", 0x3DCCC000 >> 13),
        (qf.TF32, "0b0_01111011_1001100110", 0x3DCCC000 >> 13),
        (qf.TF32, "0b" + "0" * 31 + "0", 0),
    ],
)
def test_bit_patterns(fmt, text: str, code: int) -> None:
    assert qf.parse_code(fmt, text) == code


@over(
    ("fmt", "text", "sentence"),
    [
        (qf.E4M3, "0x100", "has more than the 8 bits of E4M3"),
        (qf.TF32, "0x3dcccccd", "low 13 bits of the word, which TF32 leaves zero"),
        (qf.TF32, "0x1_0000_0000", "has more than the 32 bits of TF32"),
        (qf.E4M3, "0x", "is not a bit pattern"),
        (qf.E4M3, "61", "is not a bit pattern"),
        (qf.E4M3, "0x" + "f" * 5000, "has more than the 8 bits"),
    ],
)
def test_bad_bit_patterns_get_one_sentence(fmt, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        qf.parse_code(fmt, text)
    assert len(str(caught.value)) < 250


def test_input_is_read_as_a_number_or_as_a_bit_pattern() -> None:
    number = qf.parse_input("0.1", qf.E4M3)
    assert (number.value, number.format, number.code) == (Fraction(1, 10), None, None)
    bits = qf.parse_input("0x1d", qf.E4M3)
    assert (bits.value, bits.format, bits.code) == (Fraction(13, 128), qf.E4M3, 0x1D)
    named = qf.parse_input("fp32: 0x3dcccccd")
    assert (named.format, named.code) == (qf.FP32, 0x3DCCCCCD)
    assert qf.parse_input("0x1p4", qf.E4M3).value == 16
    for text, sentence in (
        ("0x1d", "needs a format: type for example e4m3:0x1d"),
        ("fp7:0x1d", "no format 'fp7'"),
        ("fp32:0.1", r"'0\.1' is no bit pattern"),
    ):
        with pytest.raises(UsageError, match=sentence):
            qf.parse_input(text)


@over(
    ("value", "digits", "text"),
    [
        (round_value(qf.FP32, Fraction(1, 10)), 15, "0.100000001490116…"),
        (Fraction(13, 128), 17, "0.1015625"),
        (Fraction(1, 3), 5, "0.33333…"),
        (Fraction(1234567), 5, "1.2345…e+6"),
        (Fraction(10**16), 5, "10000000000000000"),
        (Fraction(10**17), 5, "1e+17"),
        (Fraction(1, 2**16), 17, "0.0000152587890625"),
        (qf.FP64.min_positive, 4, "4.940…e-324"),
        (Fraction(0), 5, "0"),
        (-0.0, 5, "-0"),
        (math.inf, 5, "inf"),
        (math.nan, 5, "NaN"),
    ],
)
def test_exact_decimals_are_cut_not_rounded(value, digits: int, text: str) -> None:
    assert qf.format_exact(value, digits) == text


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 40))
def test_a_decimal_without_ellipsis_is_the_value(value: float, digits: int) -> None:
    exact = Fraction(value) if value else value
    text = qf.format_exact(exact, digits)
    assert qf.format_exact(exact, digits, ellipsis="...") == text.replace("…", "...")
    if "…" not in text:
        assert qf.parse_value(text) == exact
    else:
        cut = qf.parse_value(text.replace("…", ""))
        assert 0 < (exact - cut) / exact < Fraction(10) ** (1 - digits)
    assert qf.parse_value(qf.format_exact(exact, 800)) == exact


@over(
    ("value", "text"),
    [
        (round_value(qf.FP32, Fraction(1, 10)) - Fraction(1, 10), "+1.49e-9"),
        (Fraction(-244140625, 10**13), "-2.44e-5"),
        (Fraction(1, 640), "+1.56e-3"),
        (Fraction(9999, 10000), "+1"),
        (Fraction(99951, 10), "+1e+4"),
        (Fraction(0), "0"),
        (math.inf, "inf"),
    ],
)
def test_errors_are_rounded_to_three_digits(value, text: str) -> None:
    assert qf.format_rounded(value, signed=True) == text


@given(st.fractions().filter(bool), st.integers(1, 12))
def test_rounded_decimals_are_within_half_a_digit(value: Fraction, digits: int) -> None:
    shown = qf.parse_value(qf.format_rounded(value, digits))
    assert abs(shown - value) <= abs(value) * Fraction(10) ** (1 - digits) / 2


@over(
    ("value", "text"),
    [
        (Fraction(13, 128), "13/128"),
        (Fraction(13421773, 2**27), "13421773 × 2^-27"),
        (Fraction(1, 2**127), "2^-127"),
        (qf.FP32.max, "16777215 × 2^104"),
        (Fraction(-1, 3), "-1/3"),
        (Fraction(1, 10**300), "1e-300"),
        (Fraction(3**200), "2.6561398887587476…e+95"),
        (Fraction(0), "0"),
        (-0.0, "-0"),
        (math.nan, "NaN"),
    ],
)
def test_fractions_are_written_readably(value, text: str) -> None:
    assert qf.exact_fraction_text(value) == text


@given(st.fractions(min_value=Fraction(1, 10**30)))
def test_floor_log10_is_exact(value: Fraction) -> None:
    exponent = floor_log10(value)
    assert Fraction(10) ** exponent <= value < Fraction(10) ** (exponent + 1)


def test_the_longest_inputs_are_answered_at_once() -> None:
    for text in ("1e2000", "1e-2000", "9" * 2000, "0." + "3" * 1990, "1e-2000/1e2000"):
        value = qf.parse_value(text)
        for fmt in (qf.FP64, qf.E4M3):
            qf.encode(fmt, value)
        assert qf.format_exact(value)
        assert qf.exact_fraction_text(value)
        assert qf.format_rounded(value)
