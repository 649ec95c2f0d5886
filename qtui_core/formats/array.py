"""Encode and decode numpy arrays, for comparisons with libraries: the results of scalar.py, bit for
bit, by the same steps in float64.

Codes are unsigned integers of the smallest width that holds them: uint8 up to 8 bits (one code per
byte, not packed), uint16, uint32 (TF32: the 19 bits, without padding), uint64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from qtui_core.errors import UsageError
from qtui_core.formats.catalog import FP16, FP64
from qtui_core.formats.rounding import Rounding, check_random_bits, rounds_toward_zero
from qtui_core.formats.scalar import decode
from qtui_core.formats.spec import FloatFormat, Format, IntFormat, Specials

Float64 = NDArray[np.float64]


def code_dtype(fmt: Format) -> np.dtype[Any]:
    """The smallest unsigned integer type that holds a code."""
    return np.dtype(next(f"uint{bits}" for bits in (8, 16, 32, 64) if fmt.bits <= bits))


@np.errstate(all="ignore")
def encode_array(
    fmt: Format,
    values: ArrayLike,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
    random_bits: NDArray[Any] | None = None,
    random_bit_count: int = 0,
) -> NDArray[Any]:
    """The codes of `values` (floats of any width up to 64 bits, any shape), in the same shape.

    Each is what scalar.encode gives; `random_bits` are unsigned integers of the shape of `values`
    below 2^random_bit_count, for STOCHASTIC only. Raises UsageError where the format has no code
    for a value, ValueError for unusable random bits.
    """
    check_random_bits(rounding, 0, random_bit_count)
    x = np.asarray(values, np.float64)
    size, negative, nan = np.abs(x), np.signbit(x), np.isnan(x)
    saturate = fmt.saturates if saturate is None else saturate
    if not fmt.has_nan and nan.any():
        raise UsageError(
            f"{fmt.title} has no NaN, and {nan.sum():,} of {x.size:,} values are NaN. Replace them "
            f"before casting to {fmt.title}."
        )
    if isinstance(fmt, IntFormat):
        if not saturate and np.isinf(x).any():
            raise UsageError(
                f"{fmt.title} has no infinity to wrap. Saturate, or replace the infinity first."
            )
        # fmod is exact and removes whole multiples of the range.
        size = size if saturate else np.fmod(size, float(fmt.code_count * fmt.step))
        steps = np.ldexp(size, fmt.fraction_bits)
        below = np.floor(np.minimum(steps, fmt.code_count))
        code = below.astype(np.int64)
    else:
        exponent = np.frexp(np.where(np.isfinite(x) & (x != 0), size, 2.0**-1074))[1] - 1
        if fmt.zero_exponent_is_subnormal:
            exponent = np.maximum(exponent, fmt.min_exponent)
        steps = np.ldexp(size, fmt.mantissa_bits - exponent)
        below = np.floor(np.where(np.isfinite(x), steps, 0))
        code = ((exponent.astype(np.int64) + fmt.bias - 1) << fmt.mantissa_bits) + below.astype(int)
    fraction = np.where(np.isfinite(steps), steps - below, 0)
    code += _moves_away(fmt, rounding, code, fraction, negative, random_bits, random_bit_count)
    if isinstance(fmt, IntFormat):
        code = np.where(negative, -code, code)
        if saturate:
            code = np.clip(code, int(fmt.min / fmt.step), int(fmt.max / fmt.step))
        return (code & (fmt.code_count - 1)).astype(code_dtype(fmt))
    return _end_range(fmt, rounding, saturate, x, code).astype(code_dtype(fmt))


def _moves_away(
    fmt: Format,
    rounding: Rounding,
    code: NDArray[Any],
    fraction: Float64,
    negative: NDArray[np.bool_],
    random_bits: NDArray[Any] | None,
    count: int,
) -> NDArray[np.bool_]:
    """`rounding.moves_away_from_zero` of each element."""
    moves: NDArray[np.bool_]
    match rounding:
        case Rounding.NEAREST_EVEN:
            odd = code & 1 != 0
            if isinstance(fmt, FloatFormat) and not fmt.mantissa_bits:  # the hidden bit is the last
                odd = code != 0 if fmt.has_zero else np.ones(code.shape, bool)
            moves = (fraction > 0.5) | ((fraction == 0.5) & odd)
        case Rounding.NEAREST_AWAY:
            moves = fraction >= 0.5
        case Rounding.STOCHASTIC:
            if random_bits is None or random_bits.shape != code.shape:
                given = "none" if random_bits is None else f"shape {random_bits.shape}"
                raise ValueError(f"random bits of shape {code.shape} are needed, got {given}")
            if random_bits.size and (random_bits.min() < 0 or random_bits.max() >= 1 << count):
                raise ValueError(f"the random bits are not numbers of {count} bits")
            moves = np.floor(np.ldexp(fraction, count)) + random_bits >= 2.0**count
        case _:
            down, up = (rounds_toward_zero(rounding, sign) for sign in (True, False))
            moves = (fraction > 0) & ~np.where(negative, down, up)
    return moves


def _end_range(
    fmt: FloatFormat, rounding: Rounding, saturate: bool, x: Float64, code: NDArray[np.int64]
) -> NDArray[Any]:
    """Codes with their sign, where the range has ended those of its end, infinity or NaN."""
    negative, nan_code = np.signbit(x), fmt.nan_code or 0
    saturate = saturate or fmt.specials is Specials.FINITE
    beyond = nan_code if fmt.infinity_code is None else fmt.infinity_code
    stays = [rounds_toward_zero(rounding, sign) for sign in (True, False)]
    last = saturate | (np.where(negative, *stays) & np.isfinite(x))
    over = (code > fmt.max_code) | np.isinf(x)
    code = np.where(over, np.where(last, fmt.max_code, beyond), np.maximum(code, 0))
    nan = np.isnan(x)
    if not fmt.signed:
        nan = nan | (x < 0)
    if not fmt.has_zero:
        code = np.where(x == 0, 0 if saturate else nan_code, code)
    code = np.where(nan, nan_code, code).astype(np.uint64)
    signed = negative & (code != 0) if not fmt.has_negative_zero else negative
    return code | np.where(signed, np.uint64(fmt.sign_bit), np.uint64(0))


def decode_array(fmt: Format, codes: ArrayLike, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The values of `codes` (unsigned integers, any shape), in the same shape.

    float64 holds every format exactly, float32 all but FP64. NaN keeps its sign. Raises IndexError
    for a code with more bits than the format.
    """
    given = np.asarray(codes)
    if given.size and int(given.max()) >= fmt.code_count:
        raise IndexError(f"codes of {fmt.title} have {fmt.bits} bits")
    if fmt.bits <= 8 or isinstance(fmt, IntFormat):
        return _values(fmt)[given].astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # FP64 into float32, signalling NaN
        if fmt in (FP16, FP64):
            return given.astype(code_dtype(fmt)).view(f"f{fmt.bits // 8}").astype(dtype)
        # BF16, TF32 and FP32 are the upper bits of a float32.
        words = given.astype(np.uint32) << np.uint32(32 - fmt.bits)
        return words.view(np.float32).astype(dtype)


@lru_cache(maxsize=64)
def _values(fmt: Format) -> Float64:
    return np.array([decode(fmt, code).to_float() for code in range(fmt.code_count)])
