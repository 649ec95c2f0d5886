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

from qtui_core.formats.catalog import FP16, FP64
from qtui_core.formats.rounding import Rounding, rounds_toward_zero
from qtui_core.formats.scalar import decode
from qtui_core.formats.spec import FloatFormat, Format, IntFormat, Specials

Float64 = NDArray[np.float64]


def code_dtype(fmt: Format) -> np.dtype[Any]:
    """The smallest unsigned integer type that holds a code."""
    return np.dtype(next(f"uint{bits}" for bits in (8, 16, 32, 64) if fmt.bits <= bits))


@np.errstate(all="ignore")
def encode_array(
    fmt: FloatFormat,
    values: ArrayLike,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
    draw: tuple[NDArray[Any], int] | None = None,
) -> NDArray[Any]:
    """The codes of `values` (floats of any width up to 64 bits, any shape), in the same shape.

    STOCHASTIC takes `draw`: random unsigned integers of the shape of `values`, and their bits. NaN
    becomes 0 if the format has none.
    """
    x = np.asarray(values, np.float64)
    size, finite = np.abs(x), np.isfinite(x)
    exponent = np.frexp(np.where(finite & (x != 0), size, 2.0**-1074))[1].astype(np.int64) - 1
    if fmt.zero_exponent_is_subnormal:
        exponent = np.maximum(exponent, fmt.min_exponent)
    steps = np.where(finite, np.ldexp(size, fmt.mantissa_bits - exponent), 0)
    below = np.floor(steps)
    code = ((exponent + fmt.bias - 1) << fmt.mantissa_bits) + below.astype(np.int64)
    fraction: Float64 = steps - below
    negative = np.signbit(x)
    stays = np.where(negative, *(rounds_toward_zero(rounding, sign) for sign in (True, False)))
    match rounding:
        case Rounding.NEAREST_EVEN:
            odd = code & 1 != 0
            if not fmt.mantissa_bits:  # the hidden bit is the last
                odd = code != 0 if fmt.has_zero else np.ones(code.shape, bool)
            code += (fraction > 0.5) | ((fraction == 0.5) & odd)
        case Rounding.NEAREST_AWAY:
            code += fraction >= 0.5
        case Rounding.STOCHASTIC:
            assert draw is not None
            code += np.floor(np.ldexp(fraction, draw[1])) + draw[0] >= 2.0 ** draw[1]
        case _:
            code += (fraction > 0) & ~stays

    saturate = fmt.saturates if saturate is None else saturate
    nan_code = fmt.nan_code or 0
    beyond = nan_code if fmt.infinity_code is None else fmt.infinity_code
    last = saturate | (fmt.specials is Specials.FINITE) | (stays & finite)
    over = (code > fmt.max_code) | np.isinf(x)
    code = np.where(over, np.where(last, fmt.max_code, beyond), np.maximum(code, 0))
    if not fmt.has_zero:
        code = np.where(x == 0, 0 if saturate else nan_code, code)
    nan = np.isnan(x) | (False if fmt.signed else x < 0)
    code = np.where(nan, nan_code, code).astype(np.uint64)
    signed = negative & ((code != 0) | fmt.has_negative_zero)
    return (code | np.where(signed, np.uint64(fmt.sign_bit), np.uint64(0))).astype(code_dtype(fmt))


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
