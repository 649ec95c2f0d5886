"""Rounding into every format, in every mode, compared with the sorted list of its numbers. The
probes are the values where rounding can go wrong: every number, every midpoint, and the floats next
to both."""

import math
from fractions import Fraction

import numpy as np
import pytest
from every import in_parts, left_out, over
from formats_oracle import INTEGERS, MODES, SMALL_FLOATS, expected_codes, name_of, probes
from shorthands import round_value

import qtui_core.formats as qf
from qtui_core.errors import UsageError
from qtui_core.formats.array import encode_array

DTYPES = (np.float32, np.float64)


@in_parts(2)
@over("saturate", [True, False])
@over("rounding", MODES)
@over("dtype", DTYPES)
@over("fmt", SMALL_FLOATS, ids=name_of)
def test_encode_finds_the_right_neighbour(fmt, dtype, rounding, saturate: bool, parts: int) -> None:
    """On arrays, and one by one where there are few."""
    table = (fmt, SMALL_FLOATS), (dtype, DTYPES), (rounding, MODES), (saturate, (True, False))
    if left_out(parts, *table):
        return
    values = probes(fmt, dtype)
    expected = expected_codes(fmt, values, rounding, saturate)
    ours = [encode_array(fmt, values, rounding, saturate)]
    if fmt.bits <= 8 and dtype is np.float64:
        ours.append(np.array([qf.encode(fmt, v, rounding, saturate) for v in values.tolist()]))
    for codes in ours:
        wrong = np.flatnonzero(codes != expected)
        assert not wrong.size, [(values[at], codes[at], expected[at]) for at in wrong[:5]]


@over("fmt", [*SMALL_FLOATS, *INTEGERS], ids=name_of)
def test_every_code_encodes_to_itself(fmt: qf.FloatFormat | qf.IntFormat) -> None:
    for code in range(0, fmt.code_count, 1 if fmt.bits <= 8 else 97):
        value = qf.decode(fmt, code).value
        if value != value and code != qf.encode(fmt, value):
            continue  # one of several NaN
        for rounding in MODES:
            assert qf.encode(fmt, value, rounding, saturate=False) == code


@over("fmt", INTEGERS, ids=name_of)
@over("rounding", MODES)
def test_integers_round_like_exact_arithmetic(fmt: qf.IntFormat, rounding: qf.Rounding) -> None:
    stride = 1 if fmt.bits <= 8 else 173
    counts = range(int(fmt.min / fmt.step) - 3, int(fmt.max / fmt.step) + 4, stride)
    parts = [Fraction(p, 16) for p in range(16)] + [Fraction(1, 2**30), 1 - Fraction(1, 2**20)]
    rounders = {
        qf.Rounding.NEAREST_EVEN: round,
        qf.Rounding.NEAREST_AWAY: lambda x: math.copysign(math.floor(abs(x) + Fraction(1, 2)), x),
        qf.Rounding.TOWARD_ZERO: math.trunc,
        qf.Rounding.UP: math.ceil,
        qf.Rounding.DOWN: math.floor,
    }
    exact = [(count + part) * fmt.step for count in counts for part in parts]
    lowest, highest = int(fmt.min / fmt.step), int(fmt.max / fmt.step)
    rounded = [int(rounders[rounding](value / fmt.step)) for value in exact]
    saturated = [min(max(n, lowest), highest) % fmt.code_count for n in rounded]
    wrapped = [n % fmt.code_count for n in rounded]
    some = slice(None, None, 1 if fmt.bits <= 8 else 7)
    assert [qf.encode(fmt, v, rounding) for v in exact[some]] == saturated[some]
    assert [qf.encode(fmt, v, rounding, saturate=False) for v in exact[some]] == wrapped[some]


def test_the_number_typed_is_rounded_once() -> None:
    # 1 + 2^-24 + 2^-80: rounded to FP64 first, it is the FP32 tie, which rounds down to 1.
    value = 1 + Fraction(1, 2**24) + Fraction(1, 2**80)
    assert round_value(qf.FP32, value) == 1 + Fraction(1, 2**23)
    assert round_value(qf.FP32, float(value)) == 1
    # Rounded to FP32 first, it is the FP16 tie.
    assert round_value(qf.FP16, 1 + Fraction(1, 2**11) + Fraction(1, 2**40)) == 1 + Fraction(
        1, 2**10
    )
    doubles = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-9 + 2.0**-40])
    assert encode_array(qf.FP16, doubles).tolist() == [qf.encode(qf.FP16, v) for v in doubles]
    assert encode_array(qf.FP16, doubles[:1])[0] == 0x3C01


def test_exponents_just_below_powers_of_two() -> None:
    # floor(log2(x)) in floating point is off by one here.
    for exponent in range(-126, 128):
        below = np.nextafter(np.float32(2.0**exponent), np.float32(0))
        code = qf.encode(qf.FP32, below)
        assert code == int(below.view(np.uint32))
        assert qf.encode(qf.BF16, below, qf.Rounding.TOWARD_ZERO) == code >> 16


@over("fmt", [qf.E2M1, qf.E3M0, qf.INT8, qf.MXINT8], ids=name_of)
def test_nan_into_a_format_without_it_is_refused(fmt: qf.FloatFormat | qf.IntFormat) -> None:
    with pytest.raises(UsageError, match=f"{fmt.title} has no NaN. Replace"):
        qf.encode(fmt, math.nan)


def test_infinity_into_an_integer_that_wraps_is_refused() -> None:
    with pytest.raises(UsageError, match="INT8 has no infinity to wrap"):
        qf.encode(qf.INT8, math.inf, saturate=False)


def test_nan_keeps_its_sign_in_the_one_nan_code() -> None:
    payload = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    for fmt, code in ((qf.E4M3, 0x7F), (qf.FP16, 0x7E00), (qf.BF16, 0x7FC0), (qf.FP32, 0x7FC00000)):
        signed = [code, code | fmt.sign_bit]
        assert encode_array(fmt, payload).tolist() == signed
        assert [qf.encode(fmt, x) for x in (math.nan, math.copysign(math.nan, -1))] == signed


def test_unsigned_integers_end_at_zero() -> None:
    uint4 = qf.IntFormat("uint4", "UINT4", 4, signed=False)
    values = [-3, 0, 14.5, 15.4, 99]
    assert [qf.encode(uint4, v) for v in values] == [0, 0, 14, 15, 15]
    assert (uint4.min, uint4.max) == (0, 15)


def test_minus_zero_is_kept_where_there_is_one() -> None:
    assert [qf.encode(fmt, -0.0) for fmt in (qf.E4M3, qf.INT8, qf.E8M0)] == [0x80, 0, 0]
    assert qf.encode(qf.E4M3, Fraction(-1, 10**9)) == 0x80
