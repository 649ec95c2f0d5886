"""Rounding by brute force: finds the two neighbours in the sorted list of all numbers of the format
and compares with the point halfway between them. Shared by the tests of this folder."""

from functools import lru_cache

import ml_dtypes
import numpy as np

from qtui_core.formats import FORMATS, FloatFormat, IntFormat, Rounding, Specials, decode

#: Our name -> theirs.
ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3-ieee": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}

SMALL_FORMATS = [f for f in FORMATS.values() if f.bits <= 16]
SMALL_FLOATS = [f for f in SMALL_FORMATS if isinstance(f, FloatFormat)]
INTEGERS = [f for f in FORMATS.values() if isinstance(f, IntFormat)]
MODES = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def name_of(case: object) -> str:
    """The name of a case for pytest."""
    return getattr(case, "name", str(case))


def code_type(fmt: FloatFormat | IntFormat) -> np.dtype:
    return np.dtype(np.uint8 if fmt.bits <= 8 else np.uint16 if fmt.bits <= 16 else np.uint32)


@lru_cache
def magnitudes(fmt: FloatFormat) -> np.ndarray:
    """float64, ascending: every finite magnitude, and the one that would come next."""
    if fmt.name in ML_DTYPES:
        codes = np.arange(fmt.max_code + 1, dtype=code_type(fmt))
        values = codes.view(ML_DTYPES[fmt.name]).astype(np.float64)
    else:
        values = np.array([decode(fmt, code).to_float() for code in range(fmt.max_code + 1)])
    last_step = values[-1] - values[-2]
    if fmt.mantissa_bits == 0:
        last_step = values[-1]
    return np.append(values, values[-1] + last_step)


@lru_cache
def thresholds(fmt: FloatFormat) -> np.ndarray:
    """float64: every magnitude and every midpoint, including the one past the end."""
    steps = magnitudes(fmt)
    return np.concatenate([steps, (steps[1:] + steps[:-1]) / 2, [steps[-1] * 1.5, steps[-1] * 64]])


@lru_cache
def probes(fmt: FloatFormat, dtype: type[np.floating]) -> np.ndarray:
    """Every threshold, its nearest neighbours in `dtype` on both sides, all with both signs."""
    if np.dtype(dtype) == np.float32:
        exact = thresholds(fmt)
        with np.errstate(over="ignore"):
            at = exact.astype(np.float32)
        at = at[at.astype(np.float64) == exact]
    else:
        at = thresholds(fmt)
    with np.errstate(over="ignore", under="ignore"):
        around = [at, np.nextafter(at, dtype(np.inf)), np.nextafter(at, dtype(-np.inf))]
    positive = np.unique(np.abs(np.concatenate(around)))
    return np.concatenate([positive, -positive, np.array([np.inf, -np.inf], dtype)])


def expected_codes(
    fmt: FloatFormat, values: np.ndarray, rounding: Rounding, saturate: bool
) -> np.ndarray:
    """The codes that `values` (without NaN) round to."""
    steps = magnitudes(fmt)
    values = values.astype(np.float64)
    negative = np.signbit(values)
    size = np.abs(values)
    lower = np.searchsorted(steps, size, side="right") - 1
    inside = (lower >= 0) & (lower < len(steps) - 1)
    at = np.where(inside, lower, 0)
    middle = (steps[at] + steps[at + 1]) / 2
    between = inside & (size > steps[at])
    if fmt.mantissa_bits:
        odd = at % 2 == 1
    else:
        odd = np.ones(at.shape, bool) if not fmt.has_zero else at > 0
    up = {
        Rounding.NEAREST_EVEN: (size > middle) | ((size == middle) & odd),
        Rounding.NEAREST_AWAY: size >= middle,
        Rounding.TOWARD_ZERO: np.zeros(size.shape, bool),
        Rounding.UP: ~negative,
        Rounding.DOWN: negative,
    }[rounding]
    code = np.where(lower < 0, 0, lower) + (between & up)
    over = code > fmt.max_code
    toward_zero = {
        Rounding.TOWARD_ZERO: np.ones(size.shape, bool),
        Rounding.UP: negative,
        Rounding.DOWN: ~negative,
    }.get(rounding, np.zeros(size.shape, bool))
    to_max = over & (saturate | (fmt.specials is Specials.FINITE) | (toward_zero & (size < np.inf)))
    special = fmt.infinity_code if fmt.has_infinity else fmt.nan_code
    code = np.where(to_max, fmt.max_code, np.where(over, special or 0, code))
    if not fmt.signed:
        bad = (negative & (size > 0)) | ((size == 0) & (not saturate))
        return np.where(bad, fmt.nan_code, code)
    keeps_sign = (code > 0) | fmt.has_negative_zero
    return code | np.where(negative & keeps_sign, fmt.sign_bit, 0)
