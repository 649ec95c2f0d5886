"""Every code of every format of at most 16 bits, compared with ml_dtypes."""

import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from every import over
from formats_oracle import ML_DTYPES, SMALL_FORMATS, code_type, name_of
from hypothesis import given
from hypothesis import strategies as st

import qtui_core.formats as qf
from qtui_core.formats.array import decode_array


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Equal values, equal signs of zero, NaN in the same places (whatever its sign)."""
    number = ~np.isnan(ours)
    return np.array_equal(ours, theirs, equal_nan=True) and np.array_equal(
        np.signbit(ours[number]), np.signbit(theirs[number])
    )


def all_codes(fmt) -> np.ndarray:
    return np.arange(fmt.code_count, dtype=code_type(fmt))


@over("fmt", SMALL_FORMATS, ids=name_of)
def test_array_and_scalar_decode_every_code_alike(fmt) -> None:
    values = decode_array(fmt, all_codes(fmt))
    scalar = np.array([qf.decode(fmt, code).to_float() for code in range(fmt.code_count)])
    assert values.dtype == np.float64
    assert same(values, scalar)
    assert np.array_equal(np.signbit(values), np.signbit(scalar))
    assert same(decode_array(fmt, all_codes(fmt), np.float32).astype(np.float64), scalar)


@over("fmt", [qf.FORMATS[name] for name in ML_DTYPES], ids=name_of)
def test_every_code_is_what_ml_dtypes_reads(fmt) -> None:
    with np.errstate(invalid="ignore"):  # their signalling NaN
        theirs = all_codes(fmt).view(ML_DTYPES[fmt.name]).astype(np.float64)
    assert same(decode_array(fmt, all_codes(fmt)), theirs)


def test_integers_are_twos_complement() -> None:
    for fmt, dtype in ((qf.INT16, np.int16), (qf.INT8, np.int8), (qf.INT4, ml_dtypes.int4)):
        theirs = all_codes(fmt).view(dtype).astype(float)
        assert np.array_equal(decode_array(fmt, all_codes(fmt)), theirs)
    assert qf.decode(qf.MXINT8, 0x7F).value == Fraction(127, 64)
    assert qf.decode(qf.MXINT8, 0x80).value == -2


@given(st.integers(0, 2**64 - 1))
def test_fp64_decodes_as_the_machine_does(code: int) -> None:
    theirs = struct.unpack("<d", struct.pack("<Q", code))[0]
    ours = qf.decode(qf.FP64, code).to_float()
    assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    assert math.copysign(1, ours) == math.copysign(1, theirs)
    array = decode_array(qf.FP64, np.array([code], np.uint64))
    assert array.view(np.uint64)[0] == code


@given(st.integers(0, 2**32 - 1))
def test_fp32_and_tf32_decode_as_the_machine_does(code: int) -> None:
    theirs = np.uint32(code).view(np.float32)
    assert np.array_equal(np.float32(qf.decode(qf.FP32, code).to_float()), theirs, equal_nan=True)
    assert np.array_equal(
        decode_array(qf.FP32, np.uint32(code)), np.float64(theirs), equal_nan=True
    )
    short = np.uint32(code >> 13 << 13).view(np.float32)
    assert np.array_equal(
        np.float32(qf.decode(qf.TF32, code >> 13).to_float()), short, equal_nan=True
    )
    assert np.array_equal(
        decode_array(qf.TF32, np.array([code >> 13], np.uint32), np.float32)[0],
        short,
        equal_nan=True,
    )


def test_a_decoded_code_is_taken_apart() -> None:
    d = qf.decode(qf.E4M3, 0b0_0011_101)
    assert (d.sign, d.exponent_field, d.mantissa_field, d.kind) == (0, 3, 5, qf.Kind.NORMAL)
    assert (d.exponent, d.significand, d.value) == (-4, Fraction(13, 8), Fraction(13, 128))
    d = qf.decode(qf.E5M2, 0b1_00000_11)
    assert (d.sign, d.kind, d.exponent) == (1, qf.Kind.SUBNORMAL, -14)
    assert (d.significand, d.value) == (Fraction(3, 4), -Fraction(3, 4) / 2**14)
    d = qf.decode(qf.E5M2, 0xFC)
    assert (d.kind, d.value, d.exponent, d.significand) == (qf.Kind.INFINITY, -math.inf, None, None)
    assert qf.decode(qf.E5M2, 0xFD).kind is qf.Kind.NAN
    assert qf.decode(qf.INT8, 0x85).kind is qf.Kind.INTEGER
    assert qf.decode(qf.E8M0, 0).value == Fraction(1, 2**127)


def test_a_code_with_too_many_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="not a code of 4 bits"):
        qf.decode(qf.E2M1, 16)
    with pytest.raises(ValueError, match="not a code"):
        qf.decode(qf.INT8, -1)
    for fmt in (qf.E2M1, qf.TF32):
        with pytest.raises(IndexError):
            decode_array(fmt, np.array([fmt.code_count], np.uint32))
