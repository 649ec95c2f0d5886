"""Rounding into every format, in every mode, compared with the sorted list of its numbers. The
probes are the values where rounding can go wrong: every number, every midpoint, and the floats next
to both."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from every import in_parts, left_out, over
from formats_oracle import (
    INTEGERS,
    MODES,
    SMALL_FLOATS,
    expected_codes,
    name_of,
    probes,
)
from shorthands import round_value

from qtui_core.errors import UsageError
from qtui_core.formats import (
    BF16,
    E2M1,
    E3M0,
    E4M3,
    E5M2,
    E8M0,
    FP16,
    FP32,
    INT4,
    INT8,
    MXINT8,
    FloatFormat,
    IntFormat,
    Rounding,
    decode,
    encode,
)
from qtui_core.formats.array import encode_array

TINY_FLOATS = [f for f in SMALL_FLOATS if f.bits <= 8]
DTYPES = (np.float32, np.float64)
SATURATION = over("saturate", [True, False])


@in_parts(2)
@SATURATION
@over("rounding", MODES)
@over("fmt", TINY_FLOATS, ids=name_of)
def test_scalar_encode_finds_the_right_neighbour(
    fmt: FloatFormat, rounding: Rounding, saturate: bool, parts: int
) -> None:
    if left_out(parts, (fmt, TINY_FLOATS), (rounding, MODES), (saturate, (True, False))):
        return
    values = probes(fmt, np.float64)
    expected = expected_codes(fmt, values, rounding, saturate)
    ours = [encode(fmt, v, rounding, saturate) for v in values.tolist()]
    wrong = [(v, a, b) for v, a, b in zip(values, ours, expected, strict=True) if a != b]
    assert not wrong, wrong[:5]


@in_parts(2)
@SATURATION
@over("rounding", MODES)
@over("dtype", DTYPES)
@over("fmt", SMALL_FLOATS, ids=name_of)
def test_array_encode_finds_the_right_neighbour(
    fmt: FloatFormat, dtype: type, rounding: Rounding, saturate: bool, parts: int
) -> None:
    table = (fmt, SMALL_FLOATS), (dtype, DTYPES), (rounding, MODES), (saturate, (True, False))
    if left_out(parts, *table):
        return
    values = probes(fmt, dtype)
    ours = encode_array(fmt, values, rounding, saturate)
    expected = expected_codes(fmt, values, rounding, saturate)
    wrong = np.flatnonzero(ours != expected)
    assert not wrong.size, [(values[i], ours[i], expected[i]) for i in wrong[:5]]


@over("fmt", [*SMALL_FLOATS, *INTEGERS], ids=name_of)
def test_every_code_encodes_to_itself(fmt: FloatFormat | IntFormat) -> None:
    for code in range(0, fmt.code_count, 1 if fmt.bits <= 8 else 97):
        value = decode(fmt, code).value
        if value != value and code != encode(fmt, value):
            continue  # one of several NaN
        for rounding in MODES:
            assert encode(fmt, value, rounding, saturate=False) == code


@over("fmt", INTEGERS, ids=name_of)
@over("rounding", MODES)
def test_integers_round_like_exact_arithmetic(fmt: IntFormat, rounding: Rounding) -> None:
    stride = 1 if fmt.bits <= 8 else 173
    counts = range(int(fmt.min / fmt.step) - 3, int(fmt.max / fmt.step) + 4, stride)
    parts = [Fraction(p, 16) for p in range(16)] + [Fraction(1, 2**30), 1 - Fraction(1, 2**20)]
    rounders = {
        Rounding.NEAREST_EVEN: round,
        Rounding.NEAREST_AWAY: lambda x: math.copysign(math.floor(abs(x) + Fraction(1, 2)), x),
        Rounding.TOWARD_ZERO: math.trunc,
        Rounding.UP: math.ceil,
        Rounding.DOWN: math.floor,
    }
    exact = [(count + part) * fmt.step for count in counts for part in parts]
    lowest, highest = int(fmt.min / fmt.step), int(fmt.max / fmt.step)
    rounded = [int(rounders[rounding](value / fmt.step)) for value in exact]
    saturated = [min(max(n, lowest), highest) % fmt.code_count for n in rounded]
    wrapped = [n % fmt.code_count for n in rounded]
    some = slice(None, None, 1 if fmt.bits <= 8 else 7)
    assert [encode(fmt, v, rounding) for v in exact[some]] == saturated[some]
    assert [encode(fmt, v, rounding, saturate=False) for v in exact[some]] == wrapped[some]


def test_the_number_typed_is_rounded_once() -> None:
    # 1 + 2^-24 + 2^-80: rounded to FP64 first, it is the FP32 tie, which rounds down to 1.
    value = 1 + Fraction(1, 2**24) + Fraction(1, 2**80)
    assert round_value(FP32, value) == 1 + Fraction(1, 2**23)
    assert round_value(FP32, float(value)) == 1
    # Rounded to FP32 first, it is the FP16 tie.
    assert round_value(FP16, 1 + Fraction(1, 2**11) + Fraction(1, 2**40)) == 1 + Fraction(1, 2**10)
    doubles = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-9 + 2.0**-40])
    assert encode_array(FP16, doubles).tolist() == [encode(FP16, v) for v in doubles]
    assert encode_array(FP16, doubles[:1])[0] == 0x3C01


def test_e4m3_is_not_truncated() -> None:
    assert round_value(E4M3, 232.04) == 240
    assert round_value(E4M3, 232.04, Rounding.TOWARD_ZERO) == 224


def test_exponents_just_below_powers_of_two() -> None:
    # floor(log2(x)) in floating point is off by one here.
    for exponent in range(-126, 128):
        below = np.nextafter(np.float32(2.0**exponent), np.float32(0))
        code = encode(FP32, below)
        assert code == int(below.view(np.uint32))
        assert encode(BF16, below, Rounding.TOWARD_ZERO) == code >> 16


@over(
    ("rounding", "positive", "negative"),
    [
        (Rounding.NEAREST_EVEN, "inf", "-inf"),
        (Rounding.NEAREST_AWAY, "inf", "-inf"),
        (Rounding.TOWARD_ZERO, "max", "-max"),
        (Rounding.UP, "inf", "-max"),
        (Rounding.DOWN, "max", "-inf"),
    ],
)
@over("fmt", [FP32, FP16, BF16, E5M2], ids=name_of)
def test_ieee_overflow_follows_the_rounding_mode(
    fmt: FloatFormat, rounding: Rounding, positive: str, negative: str
) -> None:
    meaning = {"inf": math.inf, "-inf": -math.inf, "max": fmt.max, "-max": -fmt.max}
    for factor in (2, 2**200):
        assert round_value(fmt, fmt.max * factor, rounding) == meaning[positive]
        assert round_value(fmt, -fmt.max * factor, rounding) == meaning[negative]
        assert round_value(fmt, fmt.max * factor, rounding, saturate=True) == fmt.max
    assert round_value(fmt, math.inf, rounding) == math.inf
    assert round_value(fmt, -math.inf, rounding, saturate=True) == -fmt.max


def test_fp16_ends_at_65504() -> None:
    assert round_value(FP16, 65519.99) == 65504
    assert round_value(FP16, 65520) == math.inf  # the tie with 65536 goes to the even one
    assert round_value(FP16, 65520, saturate=True) == 65504


def test_e4m3_overflow() -> None:
    assert round_value(E4M3, 464, saturate=False) == 448  # the tie with 480 goes to the even one
    assert math.isnan(round_value(E4M3, Fraction(464) + Fraction(1, 10**9), saturate=False))
    assert encode(E4M3, -465, saturate=False) == 0xFF
    assert math.isnan(round_value(E4M3, math.inf, saturate=False))
    assert round_value(E4M3, 1e30, Rounding.TOWARD_ZERO, saturate=False) == 448
    assert round_value(E4M3, math.inf) == 448
    assert round_value(E4M3, -1e9) == -448


@pytest.mark.parametrize("saturate", [True, False, None])
def test_finite_only_formats_always_saturate(saturate: bool | None) -> None:
    assert round_value(E2M1, 1e9, saturate=saturate) == 6
    assert round_value(E2M1, -math.inf, saturate=saturate) == -6
    assert encode_array(E2M1, np.array([7.0, np.inf, -np.inf]), saturate=saturate).tolist() == [
        7, 7, 15,
    ]  # fmt: skip


@pytest.mark.parametrize("fmt", [E2M1, E3M0, INT8, MXINT8], ids=name_of)
def test_nan_into_a_format_without_it_is_refused(fmt: FloatFormat | IntFormat) -> None:
    with pytest.raises(UsageError, match=f"{fmt.title} has no NaN. Replace"):
        encode(fmt, math.nan)


def test_nan_keeps_its_sign_in_the_one_nan_code() -> None:
    assert encode(E4M3, math.nan) == 0x7F
    assert encode(E4M3, math.copysign(math.nan, -1)) == 0xFF
    payload = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    assert encode_array(FP16, payload).tolist() == [0x7E00, 0xFE00]
    assert encode_array(BF16, payload).tolist() == [0x7FC0, 0xFFC0]
    assert encode_array(FP32, payload).tolist() == [0x7FC00000, 0xFFC00000]
    assert encode_array(E5M2, payload).tolist() == [0x7E, 0xFE]


def test_e8m0_has_no_zero_and_no_sign() -> None:
    assert round_value(E8M0, 0) == Fraction(1, 2**127)
    assert math.isnan(round_value(E8M0, 0, saturate=False))
    assert math.isnan(round_value(E8M0, -1))
    for rounding in MODES:
        assert encode(E8M0, Fraction(1, 2**140), rounding, saturate=False) == 0
    assert round_value(E8M0, 3) == 4  # both neighbours are odd: the tie goes to the larger
    assert round_value(E8M0, 1.5) == 2
    assert round_value(E8M0, math.inf) == 2**127
    assert math.isnan(round_value(E8M0, 2.0**128, saturate=False))


def test_a_tie_without_mantissa_bits_goes_to_the_larger_but_to_zero_from_the_smallest() -> None:
    assert round_value(E3M0, 3) == 4
    assert round_value(E3M0, Fraction(1, 8)) == 0
    assert round_value(E3M0, Fraction(1, 8), Rounding.NEAREST_AWAY) == Fraction(1, 4)


def test_integers_saturate_or_wrap() -> None:
    assert round_value(INT4, 8) == 7
    assert round_value(INT4, 8, saturate=False) == -8
    assert round_value(INT8, -math.inf) == -128
    with pytest.raises(UsageError, match="INT8 has no infinity to wrap"):
        encode(INT8, math.inf, saturate=False)


def test_unsigned_integers_end_at_zero() -> None:
    uint4 = IntFormat("uint4", "UINT4", 4, signed=False)
    assert [encode(uint4, v) for v in (-3, 0, 14.5, 15.4, 99)] == [0, 0, 14, 15, 15]


def test_minus_zero_is_kept_where_there_is_one() -> None:
    assert encode(E4M3, -0.0) == 0x80
    assert encode(E4M3, Fraction(-1, 10**9)) == 0x80
    assert encode(INT8, -0.0) == 0
    assert encode(E8M0, -0.0) == 0
