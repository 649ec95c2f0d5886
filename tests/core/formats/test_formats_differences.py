"""Casts, compared with ml_dtypes, torch and gfloat. They are equal to the byte where the library
follows the rules in scalar.py. Where it does not, the difference itself is asserted, so that a
version of a library which changes its behaviour is noticed here."""

from __future__ import annotations

import math
import warnings

import gfloat
import ml_dtypes
import numpy as np
import pytest
from every import in_parts, over
from formats_oracle import ML_DTYPES, name_of, probes, thresholds
from gfloat import formats as gf
from lazy_imports import LazyImport
from shorthands import round_value

from qtui_core.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FORMATS,
    FP16,
    INT4,
    INT8,
    MXINT8,
    FloatFormat,
    Rounding,
    decode,
    encode,
)
from qtui_core.formats.array import encode_array

torch = LazyImport("torch")

WITH_NAN = [FORMATS[name] for name in ML_DTYPES if FORMATS[name].has_nan]
FINITE = [FORMATS[name] for name in ML_DTYPES if not FORMATS[name].has_nan]
NAN = np.array([np.nan, -np.nan], np.float32)


def ml_dtypes_codes(fmt: FloatFormat, values: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow, which is what is tested
        cast = values.astype(ML_DTYPES[fmt.name])
    return cast.view(np.uint16 if fmt.bits == 16 else np.uint8)


def torch_codes(dtype: torch.dtype, values: np.ndarray) -> np.ndarray:
    cast = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    return cast.view(torch.uint16 if dtype.itemsize == 2 else torch.uint8).numpy()


def wrong_in_both_libraries(values: np.ndarray) -> np.ndarray:
    """Subnormal float32 that ml_dtypes and torch round to the farther E8M0."""
    return (values > 2.0**-127) & (values < 1.5 * 2.0**-127)


def encoded(fmt: FloatFormat, value: float, saturate: bool) -> int:
    return encode(fmt, value, saturate=saturate)


@pytest.mark.parametrize("fmt", WITH_NAN, ids=name_of)
def test_casts_of_float32_are_byte_equal_to_ml_dtypes_without_saturation(fmt) -> None:
    values = np.concatenate([probes(fmt, np.float32), NAN])
    if fmt is E8M0:
        values = values[~wrong_in_both_libraries(values)]
    assert np.array_equal(encode_array(fmt, values, saturate=False), ml_dtypes_codes(fmt, values))


@pytest.mark.parametrize("fmt", FINITE, ids=name_of)
def test_casts_into_finite_formats_are_byte_equal_to_ml_dtypes(fmt) -> None:
    values = probes(fmt, np.float32)
    assert np.array_equal(encode_array(fmt, values), ml_dtypes_codes(fmt, values))


@pytest.mark.parametrize("fmt", [E2M1, E2M3, E3M2], ids=name_of)
def test_difference_ml_dtypes_turns_nan_into_a_zero_of_the_other_sign(fmt) -> None:
    assert ml_dtypes_codes(fmt, NAN).tolist() == [fmt.sign_bit, 0]  # we refuse


@pytest.mark.parametrize(
    ("fmt", "dtype", "saturate"),
    [
        (FP16, "float16", False),
        (BF16, "bfloat16", False),
        (E4M3, "float8_e4m3fn", True),
        (E5M2, "float8_e5m2", False),
        (E4M3FNUZ, "float8_e4m3fnuz", False),
        (E5M2FNUZ, "float8_e5m2fnuz", False),
    ],
    ids=name_of,
)
def test_casts_are_byte_equal_to_torch(fmt, dtype: str, saturate: bool) -> None:
    values = probes(fmt, np.float32)
    theirs = torch_codes(getattr(torch, dtype), values)
    assert np.array_equal(encode_array(fmt, values, saturate=saturate), theirs)


def test_difference_torch_saturates_e4m3_infinities_and_ml_dtypes_makes_them_nan() -> None:
    values = np.array([np.inf, 1e30, 465, 464], np.float32)
    assert torch_codes(torch.float8_e4m3fn, values).tolist() == [0x7E] * 4
    assert ml_dtypes_codes(E4M3, values).tolist() == [0x7F] * 3 + [0x7E]
    assert [encoded(E4M3, v, True) for v in values] == [0x7E] * 4
    assert [encoded(E4M3, v, False) for v in values] == [0x7F] * 3 + [0x7E]


def test_difference_e5m2_never_saturates_in_either_library() -> None:
    values = np.array([61439, 61440, 1e30], np.float32)
    assert torch_codes(torch.float8_e5m2, values).tolist() == [0x7B, 0x7C, 0x7C]
    assert ml_dtypes_codes(E5M2, values).tolist() == [0x7B, 0x7C, 0x7C]
    assert [encoded(E5M2, v, False) for v in values] == [0x7B, 0x7C, 0x7C]
    assert [encoded(E5M2, v, True) for v in values] == [0x7B] * 3


def test_difference_torch_fnuz_does_not_saturate_while_its_e4m3fn_does() -> None:
    assert torch_codes(torch.float8_e4m3fnuz, np.array([300.0], np.float32)).tolist() == [0x80]
    assert encode(E4M3FNUZ, 300) == 0x7F  # our default for formats without infinity
    assert encode(E4M3FNUZ, 300, saturate=False) == 0x80


def test_difference_nan_bytes() -> None:
    assert ml_dtypes_codes(E5M2, NAN).tolist() == [0x7E, 0xFE]
    assert torch_codes(torch.float8_e5m2, NAN).tolist() == [0x7F, 0xFF]
    assert encode_array(E5M2, NAN).tolist() == [0x7E, 0xFE]
    # Different bytes, the same NaN.
    assert math.isnan(decode(E5M2, 0x7F).to_float())
    assert torch_codes(torch.float8_e4m3fn, NAN).tolist() == [0x7F, 0xFF]
    assert encode_array(E4M3, NAN).tolist() == [0x7F, 0xFF]


def test_difference_e8m0() -> None:
    dtype = torch.float8_e8m0fnu
    zero, minus, infinity = (np.array([v], np.float32) for v in (0.0, -4.0, np.inf))
    assert (torch_codes(dtype, zero)[0], ml_dtypes_codes(E8M0, zero)[0]) == (0, 0xFF)
    assert (encode(E8M0, 0.0, saturate=True), encode(E8M0, 0.0, saturate=False)) == (0, 0xFF)
    # torch drops the sign.
    assert (torch_codes(dtype, minus)[0], ml_dtypes_codes(E8M0, minus)[0]) == (129, 0xFF)
    assert encode(E8M0, -4.0) == 0xFF
    # torch does not saturate here, though it does in E4M3.
    assert (torch_codes(dtype, infinity)[0], encode(E8M0, math.inf)) == (0xFF, 254)
    positive = probes(E8M0, np.float32)
    positive = positive[(positive > 0) & ~wrong_in_both_libraries(positive)]
    ours = encode_array(E8M0, positive, saturate=False)
    assert np.array_equal(ours, torch_codes(dtype, positive))


def test_difference_both_libraries_round_e8m0_the_wrong_way_next_to_its_smallest() -> None:
    value = np.array([1.0001 * 2.0**-127], np.float32)
    assert wrong_in_both_libraries(value).all()
    assert ml_dtypes_codes(E8M0, value)[0] == torch_codes(torch.float8_e8m0fnu, value)[0] == 1
    assert encode_array(E8M0, value)[0] == encode(E8M0, value[0]) == 0  # 2^-127 is nearest by far


def test_difference_gfloat_rounds_e8m0_ties_by_the_code() -> None:
    def theirs(value: float) -> float:
        return gfloat.round_float(gf.format_info_ocp_e8m0, value)

    assert [theirs(v) for v in (1.5, 3.0, 6.0)] == [2.0, 2.0, 8.0]
    assert [round_value(E8M0, v) for v in (1.5, 3.0, 6.0)] == [2, 4, 8]
    three = np.array([3.0], np.float32)
    assert torch_codes(torch.float8_e8m0fnu, three)[0] == ml_dtypes_codes(E8M0, three)[0] == 129


def test_difference_ml_dtypes_int4_wraps_and_truncates() -> None:
    values = np.array([8, 7.9, -7.9, 2.5, -8.5, 9], np.float32)
    theirs = values.astype(ml_dtypes.int4).astype(int).tolist()
    assert theirs == [-8, 7, -7, 2, -8, -7]
    ours = [round_value(INT4, v, Rounding.TOWARD_ZERO, saturate=False) for v in values]
    assert ours == theirs
    assert [round_value(INT4, v) for v in values] == [7, 7, -8, 2, -8, 7]


MODES = {
    Rounding.NEAREST_EVEN: gfloat.RoundMode.TiesToEven,
    Rounding.NEAREST_AWAY: gfloat.RoundMode.TiesToAway,
    Rounding.TOWARD_ZERO: gfloat.RoundMode.TowardZero,
    Rounding.UP: gfloat.RoundMode.TowardPositive,
    Rounding.DOWN: gfloat.RoundMode.TowardNegative,
}


@in_parts(2)
@over("saturate", [True, False])
@over("rounding", MODES)
@over(
    ("fmt", "info"),
    [
        (E4M3, gf.format_info_ocp_e4m3),
        (E5M2, gf.format_info_ocp_e5m2),
        (E3M2, gf.format_info_ocp_e3m2),
        (E2M3, gf.format_info_ocp_e2m3),
        (E2M1, gf.format_info_ocp_e2m1),
        (FP16, gf.format_info_binary16),
    ],
    ids=name_of,
)
def test_rounding_in_every_mode_agrees_with_gfloat(fmt, info, rounding, saturate, parts) -> None:
    saturate = saturate or not fmt.has_nan  # gfloat refuses what we always saturate
    values = probes(fmt, np.float64)
    values = values[:: max(1, parts * len(values) // 1500)]
    for value in values.tolist():
        theirs = gfloat.round_float(info, value, MODES[rounding], saturate)
        ours = float(round_value(fmt, value, rounding, saturate))
        same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))
        if rounding is Rounding.NEAREST_AWAY and just_below_a_tie(fmt, value):
            continue
        assert same, (value, ours, theirs)
        assert math.isnan(ours) or math.copysign(1, ours) == math.copysign(1, theirs)


def just_below_a_tie(fmt: FloatFormat, value: float) -> bool:
    return abs(np.nextafter(value, math.copysign(math.inf, value))) in thresholds(fmt)


def test_difference_gfloat_rounds_just_below_a_tie_away() -> None:
    # gfloat adds one half in floating point, which rounds the sum up to 1.
    value = 0.24999999999999997
    away = MODES[Rounding.NEAREST_AWAY]
    assert gfloat.round_float(gf.format_info_ocp_e2m1, value, away, True) == 0.5
    assert round_value(E2M1, value, Rounding.NEAREST_AWAY) == 0
    assert encode_array(E2M1, np.array([value]), Rounding.NEAREST_AWAY)[0] == 0


def test_mxint8_rounds_as_gfloat() -> None:
    for value in np.arange(-2.1, 2.1, 1 / 256).tolist():
        theirs = gfloat.round_float(gf.format_info_ocp_int8, value, sat=True)
        assert round_value(MXINT8, value) == theirs


def test_int8_rounds_half_to_even_as_torch_does() -> None:
    values = np.arange(-140, 140, 0.25, dtype=np.float32)
    theirs = torch.from_numpy(values).round().clamp(-128, 127).to(torch.int8).numpy()
    assert np.array_equal(encode_array(INT8, values).view(np.int8), theirs)
