"""Decode, encode and round numpy arrays: the results are those of scalar.py, bit for bit.

Codes are unsigned integers of the smallest width that holds them: uint8 up to 8 bits (one code per
byte, not packed), uint16, uint32 (TF32: the 19 bits, without padding), uint64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from qtui_core.errors import UsageError
from qtui_core.formats.array_words import (
    FLOAT32,
    FLOAT64,
    decode_words,
    encode_same_exponents,
    encode_words,
    shares_exponents,
)
from qtui_core.formats.catalog import FP16, FP32
from qtui_core.formats.rounding import Casting, Rounding, check_random_bits
from qtui_core.formats.spec import FloatFormat, Format, IntFormat, Specials

#: Elements per chunk: the few temporary arrays of this length fit in the L2 cache together.
CHUNK = 1 << 15
#: The upper half of a float32 word has 7 mantissa bits. Two of them are not for the format's own:
#: one is the round bit, which decides ties, and the last is the sticky bit: is any lower bit set?
_TABLE_MANTISSA_BITS = 7 - 2

#: (values, codes to write, random bits) of one chunk.
_Encoder = Callable[[NDArray[Any], NDArray[Any], NDArray[Any] | None], None]


def code_dtype(fmt: Format) -> np.dtype[Any]:
    """The smallest unsigned integer type that holds a code."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if fmt.bits <= np.dtype(dtype).itemsize * 8:
            return np.dtype(dtype)
    return np.dtype(np.uint64)


def encode_array(
    fmt: Format,
    values: ArrayLike,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
    random_bits: NDArray[Any] | None = None,
    random_bit_count: int = 0,
) -> NDArray[Any]:
    """The codes of `values` (float16, float32 or float64, any shape), in the same shape.

    Each is what scalar.encode gives; `random_bits` are unsigned integers of the shape of `values`
    below 2^random_bit_count, for STOCHASTIC only. Raises UsageError where the format has no code
    for a value, TypeError for other data types, ValueError for unusable random bits.
    """
    floats = _floats(values)
    flat = np.ascontiguousarray(floats).reshape(-1)
    draw = _draw(rounding, random_bits, random_bit_count, floats.shape)
    _refuse_nan(fmt, flat)
    how = Casting(rounding, _saturates(fmt, saturate), random_bit_count)
    encode_chunk = _encoder(fmt, flat.dtype, how)
    codes = np.empty(flat.size, code_dtype(fmt))
    for start in range(0, flat.size, CHUNK):
        part = slice(start, start + CHUNK)
        encode_chunk(flat[part], codes[part], None if draw is None else draw[part])
    return codes.reshape(floats.shape)


def decode_array(fmt: Format, codes: ArrayLike, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The values of `codes` (unsigned integers, any shape), in the same shape.

    float64 holds every format exactly, float32 all but FP64. NaN keeps its sign. Raises IndexError
    for a code with more bits than the format.
    """
    given = np.asarray(codes)
    if isinstance(fmt, FloatFormat) and fmt.bits > 16:
        if given.size and int(given.max()) >= fmt.code_count:
            raise IndexError(f"codes of {fmt.title} have {fmt.bits} bits")
        with np.errstate(over="ignore", invalid="ignore"):  # FP64 into float32
            return decode_words(fmt, given).astype(dtype, copy=False)
    return _decoding_table(fmt, np.dtype(dtype)).take(given, mode="raise")


def round_array(
    fmt: Format,
    values: ArrayLike,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
    random_bits: NDArray[Any] | None = None,
    random_bit_count: int = 0,
) -> NDArray[Any]:
    """`values` rounded to the format: what decode_array makes of encode_array.

    Returns the shape and data type of `values` (float16 becomes float32). Raises what
    encode_array raises.
    """
    floats = _floats(values)
    single = floats.dtype == np.float32
    if isinstance(fmt, FloatFormat) and single and _fits_table(fmt, rounding):
        _refuse_nan(fmt, floats)
        flat = np.ascontiguousarray(floats).reshape(-1)
        rounded = np.empty_like(flat)
        look_up = _table_encoder(_rounding_table(fmt, rounding, _saturates(fmt, saturate)))
        for start in range(0, flat.size, CHUNK):
            part = slice(start, start + CHUNK)
            look_up(flat[part], rounded[part], None)
        return rounded.reshape(floats.shape)
    codes = encode_array(fmt, floats, rounding, saturate, random_bits, random_bit_count)
    return decode_array(fmt, codes, floats.dtype)


def _floats(values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"values must be float16, float32 or float64, not {array.dtype}")
    return array


def _saturates(fmt: Format, saturate: bool | None) -> bool:
    if isinstance(fmt, FloatFormat) and fmt.specials is Specials.FINITE:
        return True
    return fmt.saturates if saturate is None else saturate


def _draw(
    rounding: Rounding, random_bits: NDArray[Any] | None, count: int, shape: tuple[int, ...]
) -> NDArray[Any] | None:
    check_random_bits(rounding, 0, count)
    if rounding is not Rounding.STOCHASTIC:
        return None
    if random_bits is None or random_bits.shape != shape:
        given = "none" if random_bits is None else f"shape {random_bits.shape}"
        raise ValueError(f"stochastic rounding needs random bits of shape {shape}, got {given}")
    if random_bits.size and (random_bits.min() < 0 or random_bits.max() >= 1 << count):
        raise ValueError(f"the random bits are not numbers of {count} bits")
    return np.ascontiguousarray(random_bits).reshape(-1)


def _refuse_nan(fmt: Format, values: NDArray[Any]) -> None:
    # The minimum of an array with a NaN is NaN: this takes one pass and no temporary array.
    if fmt.has_nan or not values.size or not np.isnan(values.min()):
        return
    count = int(np.isnan(values).sum())
    raise UsageError(
        f"{fmt.title} has no NaN, and {count:,} of {values.size:,} values are NaN. Replace them "
        f"before casting to {fmt.title}."
    )


def _encoder(fmt: Format, dtype: np.dtype[Any], how: Casting) -> _Encoder:
    """The fastest exact way from this data type to this format."""
    if isinstance(fmt, IntFormat):
        return lambda values, codes, draw: encode_integers(fmt, values, codes, draw, how)
    single = dtype == np.float32
    if single and _fits_table(fmt, how.rounding):
        return _table_encoder(_code_table(fmt, how.rounding, how.saturate))
    if single and shares_exponents(fmt):
        return lambda values, codes, draw: encode_same_exponents(fmt, values, codes, draw, how)
    if how.rounding is Rounding.NEAREST_EVEN and not how.saturate:
        # FP16 from float32 only: a cast from float64 may pass through float32 and round twice.
        if fmt == FP16 and single:
            return lambda values, codes, draw: _cast(fmt, np.dtype(np.float16), values, codes)
        if fmt == FP32:
            return lambda values, codes, draw: _cast(fmt, np.dtype(np.float32), values, codes)
    # float32 words have no room for a wider mantissa or for numbers below their own subnormals.
    narrow = fmt.mantissa_bits <= 23 and fmt.min_exponent >= -126 and fmt.has_zero
    word = FLOAT32 if single and narrow else FLOAT64
    return lambda values, codes, draw: encode_words(fmt, word, values, codes, draw, how)


def _cast(
    fmt: FloatFormat, native: np.dtype[Any], values: NDArray[Any], codes: NDArray[Any]
) -> None:
    """The processor's own conversion, which rounds to nearest even and overflows to infinity."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        codes[...] = values.astype(native).view(codes.dtype)
    nan = np.isnan(values)
    if nan.any():
        sign = np.signbit(values[nan]).astype(codes.dtype) * codes.dtype.type(fmt.sign_bit)
        codes[nan] = sign | codes.dtype.type(fmt.nan_code or 0)


def _fits_table(fmt: FloatFormat, rounding: Rounding) -> bool:
    few_bits = fmt.mantissa_bits <= _TABLE_MANTISSA_BITS and fmt.bits <= 8
    return few_bits and rounding is not Rounding.STOCHASTIC


def _table_encoder(table: NDArray[Any]) -> _Encoder:
    """Looks results up by the upper half of the float32 word, whose last bit serves as sticky bit:
    it is set where any bit of the lower half is.

    The threshold between two codes of a format with few mantissa bits has that last bit 0 and an
    empty lower half. So all float32 values with the same index have the same result.
    """
    scratch = np.empty(CHUNK, np.uint32)
    index = np.empty(CHUNK, np.intp)

    def look_up(
        values: NDArray[Any], results: NDArray[Any], random_bits: NDArray[Any] | None
    ) -> None:
        words = values.view(np.uint32)
        upper, where = scratch[: words.size], index[: words.size]
        np.bitwise_and(words, 0xFFFF, out=upper)
        np.add(upper, 0xFFFF, out=upper)  # carries into bit 16 unless the lower half is 0
        np.bitwise_or(words, upper, out=upper)
        np.right_shift(upper, 16, out=upper)
        np.copyto(where, upper)
        np.take(table, where, out=results, mode="clip")

    return look_up


@lru_cache(maxsize=256)
def _code_table(fmt: FloatFormat, rounding: Rounding, saturate: bool) -> NDArray[Any]:
    """uint8[65536]: the code of each upper half of a float32 word."""
    representatives = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    table = np.empty(1 << 16, np.uint8)
    encode_words(fmt, FLOAT64, representatives, table, None, Casting(rounding, saturate))
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)
def _rounding_table(fmt: FloatFormat, rounding: Rounding, saturate: bool) -> NDArray[Any]:
    """float32[65536]: the rounded value of each upper half of a float32 word."""
    table = decode_array(fmt, _code_table(fmt, rounding, saturate), np.float32)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)
def _decoding_table(fmt: Format, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The value of every code, in code order."""
    codes = np.arange(fmt.code_count, dtype=code_dtype(fmt))
    values = decode_integers(fmt, codes) if isinstance(fmt, IntFormat) else decode_words(fmt, codes)
    # Quiet NaN only: a signalling one would raise a warning wherever the values are used.
    table = np.empty(values.shape, dtype)
    nan = np.isnan(values)
    table[~nan] = values[~nan]
    table[nan] = np.copysign(np.nan, values[nan])
    table.flags.writeable = False
    return table


def encode_integers(
    fmt: IntFormat,
    values: NDArray[Any],
    codes: NDArray[Any],
    random_bits: NDArray[Any] | None,
    how: Casting,
) -> None:
    """Writes the codes of `values` (1-D, float32 or float64, no NaN) into `codes`.

    Raises UsageError for infinities where the format wraps.
    """
    if fmt.bits > 24:  # float32 holds integers only to 2^24
        values = values.astype(np.float64, copy=False)
    if not how.saturate:
        if np.isinf(values).any():
            raise UsageError(
                f"{fmt.title} has no infinity to wrap. Saturate, or replace the infinity first."
            )
        # fmod is exact, keeps the sign and removes whole multiples of the range: the fraction
        # that is rounded stays the same.
        values = np.fmod(values, float(fmt.code_count * fmt.step)).astype(values.dtype)
    with np.errstate(over="ignore"):  # what overflows to infinity saturates all the same
        steps = np.ldexp(values, fmt.fraction_bits) if fmt.fraction_bits else values
    counts = _round(steps, how, random_bits)
    if how.saturate:
        counts = np.clip(counts, int(fmt.min / fmt.step), int(fmt.max / fmt.step))
    integers: NDArray[Any] = counts.astype(np.int32 if fmt.bits <= 24 else np.int64)
    codes[...] = (integers & (fmt.code_count - 1)).astype(codes.dtype)


def _round(steps: NDArray[Any], how: Casting, random_bits: NDArray[Any] | None) -> NDArray[Any]:
    match how.rounding:
        case Rounding.NEAREST_EVEN:
            return np.rint(steps)
        case Rounding.TOWARD_ZERO:
            return np.trunc(steps)
        case Rounding.UP:
            return np.ceil(steps)
        case Rounding.DOWN:
            return np.floor(steps)
    whole = np.trunc(steps)
    with np.errstate(invalid="ignore"):  # inf - inf: an infinity has nothing to round
        # The difference is exact. Adding one half instead would round just below a tie.
        fraction = np.abs(steps - whole)
    if how.rounding is Rounding.NEAREST_AWAY:
        away = fraction >= 0.5
    else:
        assert random_bits is not None, "encode_array draws before it gets here"
        kept = np.floor(np.ldexp(fraction.astype(np.float64), how.random_bit_count))
        away = kept + random_bits >= float(1 << how.random_bit_count)
    return np.where(away, whole + np.copysign(whole.dtype.type(1), steps), whole)


def decode_integers(fmt: IntFormat, codes: NDArray[Any]) -> NDArray[np.float64]:
    """float64 in the shape of `codes`: the value of each code."""
    wide = codes.astype(np.int64)
    counts = (wide ^ fmt.sign_bit) - fmt.sign_bit  # spreads the sign bit
    return np.ldexp(counts.astype(np.float64), -fmt.fraction_bits)
