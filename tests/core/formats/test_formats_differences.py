"""Casts, compared with ml_dtypes and gfloat. They are equal to the byte where the library
follows the rules in scalar.py. Where it does not, the difference itself is asserted, so that a
version of a library which changes its behaviour is noticed here."""

import math
import warnings

import gfloat
import numpy as np
from every import in_parts, over
from formats_oracle import ML_DTYPES, name_of, probes, thresholds
from gfloat import formats as gf
from shorthands import round_value

import qtui_core.formats as qf
from qtui_core.formats.array import encode_array

WITH_NAN = [qf.FORMATS[name] for name in ML_DTYPES if qf.FORMATS[name].has_nan]
FINITE = [qf.FORMATS[name] for name in ML_DTYPES if not qf.FORMATS[name].has_nan]
NAN = np.array([np.nan, -np.nan], np.float32)


def ml_dtypes_codes(fmt: qf.FloatFormat, values: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow, which is what is tested
        cast = values.astype(ML_DTYPES[fmt.name])
    return cast.view(np.uint16 if fmt.bits == 16 else np.uint8)


def wrong_in_both_libraries(values: np.ndarray) -> np.ndarray:
    """Subnormal float32 that ml_dtypes rounds to the farther E8M0."""
    return (values > 2.0**-127) & (values < 1.5 * 2.0**-127)


@over("fmt", WITH_NAN, ids=name_of)
def test_casts_of_float32_are_byte_equal_to_ml_dtypes_without_saturation(fmt) -> None:
    values = np.concatenate([probes(fmt, np.float32), NAN])
    if fmt is qf.E8M0:
        values = values[~wrong_in_both_libraries(values)]
    assert np.array_equal(encode_array(fmt, values, saturate=False), ml_dtypes_codes(fmt, values))


@over("fmt", FINITE, ids=name_of)
def test_casts_into_finite_formats_are_byte_equal_to_ml_dtypes(fmt) -> None:
    values = probes(fmt, np.float32)
    assert np.array_equal(encode_array(fmt, values), ml_dtypes_codes(fmt, values))


def test_difference_gfloat_rounds_e8m0_ties_by_the_code() -> None:
    def theirs(value: float) -> float:
        return gfloat.round_float(gf.format_info_ocp_e8m0, value)

    assert [theirs(v) for v in (1.5, 3.0, 6.0)] == [2.0, 2.0, 8.0]
    assert [round_value(qf.E8M0, v) for v in (1.5, 3.0, 6.0)] == [2, 4, 8]


MODES = {
    qf.Rounding.NEAREST_EVEN: gfloat.RoundMode.TiesToEven,
    qf.Rounding.NEAREST_AWAY: gfloat.RoundMode.TiesToAway,
    qf.Rounding.TOWARD_ZERO: gfloat.RoundMode.TowardZero,
    qf.Rounding.UP: gfloat.RoundMode.TowardPositive,
    qf.Rounding.DOWN: gfloat.RoundMode.TowardNegative,
}


GFLOAT = {
    qf.E4M3: gf.format_info_ocp_e4m3,
    qf.E5M2: gf.format_info_ocp_e5m2,
    qf.E3M2: gf.format_info_ocp_e3m2,
    qf.E2M3: gf.format_info_ocp_e2m3,
    qf.E2M1: gf.format_info_ocp_e2m1,
    qf.FP16: gf.format_info_binary16,
}


@in_parts(2)
@over("saturate", [True, False])
@over("rounding", MODES)
@over("fmt", GFLOAT, ids=name_of)
def test_rounding_in_every_mode_agrees_with_gfloat(fmt, rounding, saturate, parts) -> None:
    saturate = saturate or not fmt.has_nan  # gfloat refuses what we always saturate
    values = probes(fmt, np.float64)
    values = values[:: max(1, parts * len(values) // 1500)]
    for value in values.tolist():
        theirs = gfloat.round_float(GFLOAT[fmt], value, MODES[rounding], saturate)
        ours = float(round_value(fmt, value, rounding, saturate))
        same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))
        if rounding is qf.Rounding.NEAREST_AWAY and just_below_a_tie(fmt, value):
            continue
        assert same, (value, ours, theirs)
        assert math.isnan(ours) or math.copysign(1, ours) == math.copysign(1, theirs)


def just_below_a_tie(fmt: qf.FloatFormat, value: float) -> bool:
    return abs(np.nextafter(value, math.copysign(math.inf, value))) in thresholds(fmt)


def test_gfloat_rounds_just_below_a_tie_away_and_mxint8_as_here() -> None:
    # gfloat adds one half in floating point, which rounds the sum up to 1.
    value = 0.24999999999999997
    away = MODES[qf.Rounding.NEAREST_AWAY]
    assert gfloat.round_float(gf.format_info_ocp_e2m1, value, away, True) == 0.5
    assert round_value(qf.E2M1, value, qf.Rounding.NEAREST_AWAY) == 0
    assert encode_array(qf.E2M1, np.array([value]), qf.Rounding.NEAREST_AWAY)[0] == 0
    for value in np.arange(-2.1, 2.1, 1 / 256).tolist():
        theirs = gfloat.round_float(gf.format_info_ocp_int8, value, sat=True)
        assert round_value(qf.MXINT8, value) == theirs
