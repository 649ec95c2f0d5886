"""FP64, FP32 and TF32, which are too wide to try every code: hypothesis, compared with numpy and
the hardware."""

import math
import struct
from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from shorthands import round_value

from qtui_core.formats import FP32, FP64, TF32, Rounding, encode
from qtui_core.formats.array import encode_array

#: Floats of every size, with the special ones.
DOUBLES = st.floats(width=64) | st.integers(0, 2**64 - 1).map(
    lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]
)
FINITE_DOUBLES = DOUBLES.filter(math.isfinite)
SINGLES = st.integers(0, 2**32 - 1).map(lambda bits: np.uint32(bits).view(np.float32))
FRACTIONS = st.fractions() | st.builds(
    lambda n, d, e: Fraction(n, d) * Fraction(2) ** e,
    st.integers(-(2**70), 2**70),
    st.integers(1, 2**70),
    st.integers(-200, 130),
)


def double_bits(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


@given(FRACTIONS)
@example(Fraction(1, 10))
def test_fp64_rounds_a_fraction_as_python_does(value: Fraction) -> None:
    assert encode(FP64, value) == double_bits(float(value))


@given(FINITE_DOUBLES)
def test_fp64_keeps_every_double(value: float) -> None:
    for rounding in Rounding:
        bits = {"random_bit_count": 3, "random_bits": 7} if rounding == "stochastic" else {}
        assert encode(FP64, value, rounding, **bits) == double_bits(value)
    assert encode_array(FP64, np.array([value])).tolist() == [double_bits(value)]


@given(DOUBLES)
@example(3.4028235677973366e38)  # the tie at the end of FP32
@example(2.0**-150)  # the tie at its beginning
def test_fp32_rounds_doubles_as_the_machine_does(value: float) -> None:
    if math.isnan(value):
        return
    with np.errstate(over="ignore", under="ignore"):
        theirs = np.float32(value)
    assert encode(FP32, value) == int(theirs.view(np.uint32))
    assert encode_array(FP32, np.array([value])).tolist() == [int(theirs.view(np.uint32))]


@given(FINITE_DOUBLES)
def test_directed_fp32_brackets_the_value(value: float) -> None:
    exact = Fraction(value)
    down, up = (round_value(FP32, value, m) for m in (Rounding.DOWN, Rounding.UP))
    assert down <= exact <= up
    toward = round_value(FP32, value, Rounding.TOWARD_ZERO)
    assert toward == (down if exact > 0 else up)
    for rounding in (Rounding.DOWN, Rounding.UP, Rounding.TOWARD_ZERO, Rounding.NEAREST_AWAY):
        code = encode(FP32, value, rounding)
        assert encode_array(FP32, np.array([value]), rounding).tolist() == [code]
    if down != up:
        low, high = (np.float32(float(x)) for x in (down, up))
        with np.errstate(over="ignore"):
            assert np.nextafter(low, np.float32(np.inf)) == high


@given(SINGLES)
def test_tf32_follows_the_bit_recipes(value: np.float32) -> None:
    word = int(value.view(np.uint32))
    if (word & 0x7FFFFFFF) > 0x7F800000:
        return
    # cvt.rna.tf32.f32: add half of the last kept bit, cut.
    away = (word + 0x1000 & 0xFFFFE000) >> 13
    even = (word + 0xFFF + (word >> 13 & 1) & 0xFFFFE000) >> 13
    if word & 0x7FFFFFFF == 0x7F800000:
        away = even = word >> 13
    values = np.array([value])
    for rounding, code in (
        (TF32.hardware_rounding, away),
        (Rounding.NEAREST_EVEN, even),
        (Rounding.TOWARD_ZERO, word >> 13),
    ):
        assert encode(TF32, value, rounding) == code
        assert encode_array(TF32, values, rounding).tolist() == [code]
        assert encode_array(TF32, values.astype(np.float64), rounding).tolist() == [code]
