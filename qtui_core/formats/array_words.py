"""Float formats encoded from and decoded to float32 and float64, by integer operations only.

No floating-point arithmetic takes part, so nothing is rounded twice. Exponents are read from the
words; no logarithm is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qtui_core.dataclass import dataclass
from qtui_core.formats.rounding import Casting, Rounding, rounds_toward_zero
from qtui_core.formats.spec import FloatFormat, Specials


@dataclass(frozen=True)
class Word:
    """The layout of the bits of one of numpy's float types."""

    floating: type[np.floating[Any]]
    #: Signed, so that a shift to the right spreads the sign bit.
    integer: type[np.signedinteger[Any]]
    bits: int
    mantissa_bits: int
    bias: int

    @property
    def magnitude_mask(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return self.magnitude_mask >> self.mantissa_bits << self.mantissa_bits


FLOAT32 = Word(np.float32, np.int32, 32, 23, 127)
FLOAT64 = Word(np.float64, np.int64, 64, 52, 1023)


def encode_words(
    fmt: FloatFormat,
    word: Word,
    values: NDArray[Any],
    codes: NDArray[Any],
    random_bits: NDArray[Any] | None,
    how: Casting,
) -> None:
    """Writes the codes of `values` (1-D; cast to the float type of `word`) into `codes`.

    The float type of `word` must hold every number of the format exactly. NaN becomes code 0 where
    the format has no NaN: the caller refuses it first.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN cast to a wider float
        raw = values.astype(word.floating, copy=False).view(word.integer)
    magnitude = raw & word.magnitude_mask
    sign = raw >> (word.bits - 1)  # 0, or -1: all bits set

    # value = significand · 2^(exponent - mantissa_bits of the word)
    field = magnitude >> word.mantissa_bits
    significand = magnitude & ((1 << word.mantissa_bits) - 1)
    significand |= (field > 0).astype(word.integer) << word.mantissa_bits
    exponent = np.maximum(field, 1) - word.bias

    # Below the smallest normal number the exponent stays the same and more bits are dropped.
    dropped_bits = np.full_like(exponent, word.mantissa_bits - fmt.mantissa_bits)
    if fmt.zero_exponent_is_subnormal:
        lifted = np.maximum(exponent, fmt.min_exponent)
        dropped_bits += lifted - exponent
        exponent = lifted
    # A shift by two more bits than the significand has drops all of it, as less than one half.
    shift = np.minimum(dropped_bits, word.mantissa_bits + 2)
    steps = significand >> shift
    one = np.left_shift(word.integer(1), shift)
    dropped = significand & (one - 1)

    code = ((exponent + fmt.bias) << fmt.mantissa_bits) + steps - (1 << fmt.mantissa_bits)
    match how.rounding:
        case Rounding.NEAREST_EVEN:
            code += (dropped << 1) + (steps & 1) > one
        case Rounding.NEAREST_AWAY:
            code += (dropped << 1) >= one
        case Rounding.UP:
            code += (dropped != 0) & (sign == 0)
        case Rounding.DOWN:
            code += (dropped != 0) & (sign != 0)
        case Rounding.STOCHASTIC:
            assert random_bits is not None, "encode_array draws before it gets here"
            code += _carries(dropped, dropped_bits, random_bits, how.random_bit_count)

    _end_range(fmt, word, code, magnitude, sign, how)
    nan = magnitude > word.infinity
    if not fmt.signed:
        nan |= (sign != 0) & (magnitude != 0)
    if not fmt.has_zero and not how.saturate:
        nan |= magnitude == 0
    np.copyto(code, fmt.nan_code or 0, where=nan)
    # In a format as wide as the word, the sign bit is the sign bit of the integer.
    sign_bit = fmt.sign_bit if fmt.bits < word.bits else -(word.magnitude_mask + 1)
    signed = sign & word.integer(sign_bit)
    if fmt.has_zero and not fmt.has_negative_zero:
        signed &= -(code != 0).astype(word.integer)
    code |= signed
    codes[...] = code.astype(codes.dtype)


def _carries(
    dropped: NDArray[Any], dropped_bits: NDArray[Any], random_bits: NDArray[Any], count: int
) -> NDArray[np.bool_]:
    """Whether the first `count` dropped bits plus `random_bits` carry out of `count` bits."""
    wide = dropped_bits.astype(np.int64)
    left = np.maximum(count - wide, 0)
    right = np.minimum(np.maximum(wide - count, 0), 63)
    kept = (dropped.astype(np.int64) << left) >> right
    carries: NDArray[np.bool_] = kept + random_bits.astype(np.int64) >= 1 << count
    return carries


def _end_range(
    fmt: FloatFormat,
    word: Word,
    code: NDArray[Any],
    magnitude: NDArray[Any],
    sign: NDArray[Any],
    how: Casting,
) -> None:
    """Replaces, in place, the codes past either end of the range by codes that the format has."""
    np.maximum(code, 0, out=code)
    if how.saturate:
        np.minimum(code, fmt.max_code, out=code)
        return
    over = code > fmt.max_code
    if not over.any():
        return
    special = fmt.nan_code if fmt.infinity_code is None else fmt.infinity_code
    assert special is not None, "a format with neither infinity nor NaN saturates"
    for negative in (False, True):
        side = over & ((sign != 0) == negative)
        if rounds_toward_zero(how.rounding, negative):
            infinite = magnitude == word.infinity
            np.copyto(code, fmt.max_code, where=side & ~infinite)
            side &= infinite
        np.copyto(code, special, where=side)


def shares_exponents(fmt: FloatFormat) -> bool:
    """True for FP32, TF32 and BF16: float32 words without some of the last mantissa bits."""
    return (fmt.exponent_bits, fmt.bias, fmt.specials) == (8, 127, Specials.IEEE)


def encode_same_exponents(
    fmt: FloatFormat,
    values: NDArray[Any],
    codes: NDArray[Any],
    random_bits: NDArray[Any] | None,
    how: Casting,
) -> None:
    """Writes the codes of `values` (1-D float32) into `codes`, for a format that
    `shares_exponents`: rounding adds to the word and drops its last bits. A carry out of the
    mantissa gives the right exponent, also that of infinity."""
    words: NDArray[np.uint32] = values.view(np.uint32)
    dropped_bits = 23 - fmt.mantissa_bits
    ones = (1 << dropped_bits) - 1
    magnitude = words & 0x7FFFFFFF
    negative = words >> 31
    code: NDArray[Any] = magnitude
    if dropped_bits:
        match how.rounding:
            case Rounding.NEAREST_EVEN:
                code = magnitude + ((magnitude >> dropped_bits) & 1) + (ones >> 1)
            case Rounding.NEAREST_AWAY:
                code = magnitude + (1 << (dropped_bits - 1))
            case Rounding.UP:
                code = magnitude + (1 - negative) * ones
            case Rounding.DOWN:
                code = magnitude + negative * ones
            case Rounding.STOCHASTIC:
                assert random_bits is not None, "encode_array draws before it gets here"
                drawn: NDArray[Any] = random_bits.astype(np.uint32)
                surplus = how.random_bit_count - dropped_bits
                drawn = drawn >> surplus if surplus >= 0 else drawn << -surplus
                code = magnitude + drawn
    code = code >> dropped_bits
    if how.saturate:
        code = np.minimum(code, np.uint32(fmt.max_code))
    np.copyto(code, fmt.nan_code or 0, where=magnitude > FLOAT32.infinity)
    code |= negative << (fmt.bits - 1)
    codes[...] = code


def decode_words(fmt: FloatFormat, codes: NDArray[Any]) -> NDArray[Any]:
    """The value of each code, exactly, in the shape of `codes`: float32 for formats whose codes
    are the upper bits of a float32, else float64. A NaN keeps the sign of its code."""
    if shares_exponents(fmt):
        return (codes.astype(np.uint32) << np.uint32(23 - fmt.mantissa_bits)).view(np.float32)
    if fmt.bits == 64:
        return codes.astype(np.uint64).view(np.float64)
    wide = codes.astype(np.int64)
    negative = (wide & fmt.sign_bit) != 0
    magnitude = wide & ~fmt.sign_bit
    field = magnitude >> fmt.mantissa_bits
    significand = magnitude & ((1 << fmt.mantissa_bits) - 1)
    hidden = field > 0 if fmt.zero_exponent_is_subnormal else np.ones(field.shape, bool)
    significand += hidden.astype(np.int64) << fmt.mantissa_bits
    exponent = np.where(hidden, field - fmt.bias, fmt.min_exponent) - fmt.mantissa_bits
    values = np.ldexp(significand.astype(np.float64), exponent.astype(np.int32))
    values[magnitude > fmt.max_code] = np.nan
    if fmt.infinity_code is not None:
        values[magnitude == fmt.infinity_code] = np.inf
    if fmt.has_zero and fmt.signed and not fmt.has_negative_zero:
        values[negative & (magnitude == 0)] = np.nan
    return np.copysign(values, np.where(negative, -1.0, 1.0))
