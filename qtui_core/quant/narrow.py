"""Number formats without a scale: from float32 to codes, and back, by arithmetic on whole arrays.

The oracle is `qtui_core.formats`; tests compare the two. Values beyond the largest number become
that number.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qtui_core.formats import FP16, FloatFormat, Rounding
from qtui_core.quant.layout import Float32
from qtui_core.quant.levels import FLOAT32_BIAS, FLOAT32_MANTISSA, element_values
from qtui_core.quant.rounding import Words, add_to_words, correct_sums, to_integers

MAGNITUDE = np.uint32(0x7FFF_FFFF)
SIGN = np.uint32(0x8000_0000)
EXPONENT = np.uint32(0x7F80_0000)


class _Float:
    """What narrow and wide floats share.

    Attributes:
        largest: the largest number.
        smallest_normal: the smallest with all mantissa bits.
        mantissa_bits: those of a number as large as the largest.
        nan_code: of the NaN that is written, None if there is none.
        infinity_codes: of +inf and -inf, None if there are none.
    """

    def __init__(self, fmt: FloatFormat) -> None:
        self.largest = np.float32(float(fmt.max))
        self.smallest_normal = np.float32(float(fmt.min_normal))
        self.mantissa_bits = fmt.mantissa_bits
        self.nan_code = fmt.nan_code
        self.infinity_codes: tuple[int, int] | None = None
        if fmt.infinity_code is not None:
            self.infinity_codes = (fmt.infinity_code, fmt.infinity_code | fmt.sign_bit)
        width = 8 if fmt.bits <= 8 else 16 if fmt.bits <= 16 else 32
        self.code_dtype: np.dtype[Any] = np.dtype(f"uint{width}")


class NarrowFloat(_Float):
    """A format whose exponents lie well inside those of float32: FP16 and what is narrower.

    Let e be the exponent of the value and m the number of kept mantissa bits. Adding
    M = 2^(e + 23 - m) leaves exactly the kept bits: the addition itself rounds to nearest even, and
    the low bits of the sum are the rounded significand as an integer. Random bits change it by one.
    """

    def __init__(self, fmt: FloatFormat) -> None:
        super().__init__(fmt)
        self.lowest_exponent = np.uint32((fmt.min_exponent + FLOAT32_BIAS) << FLOAT32_MANTISSA)
        self.dropped = np.uint32(FLOAT32_MANTISSA - fmt.mantissa_bits)
        self.addend = self.dropped << np.uint32(FLOAT32_MANTISSA)
        #: All codes are too large by this, because of the exponent of the addend.
        self.excess = ((self.lowest_exponent + self.addend) >> self.dropped).astype(self.code_dtype)
        self.sign_bit = self.code_dtype.type(fmt.sign_bit)
        self.table = None if fmt is FP16 else element_values(fmt).astype(np.float32)

    def _add(self, x: Float32, noise: Words | None) -> tuple[Float32, Float32]:
        """|x| + M and M."""
        size = np.abs(x)
        # numpy clips three times faster than it takes a maximum with a scalar.
        np.clip(size, np.float32(0), self.largest, out=size)
        words = size.view(np.uint32) & EXPONENT
        np.clip(words, self.lowest_exponent, EXPONENT, out=words)
        words += self.addend
        addend = words.view(np.float32)
        total = size + addend
        return total if noise is None else correct_sums(total, addend, size, noise), addend

    def round(self, x: Float32, noise: Words | None) -> Float32:
        total, addend = self._add(x, noise)
        total -= addend
        return np.copysign(total, x, out=total)

    def codes(self, x: Float32, noise: Words | None) -> npt.NDArray[Any]:
        total, addend = self._add(x, noise)
        words, result = addend.view(np.uint32), total.view(np.uint32)
        result -= words  # the significand as an integer, hidden bit included
        words >>= self.dropped
        result += words
        # From here on in the width of a code, in which arithmetic costs a quarter; the excess high
        # bits are dropped.
        codes = result.astype(self.code_dtype)
        codes -= self.excess
        codes |= np.less(x.view(np.int32), 0).astype(self.code_dtype) * self.sign_bit
        return codes

    def numbers(self, codes: npt.NDArray[Any], out: Float32) -> None:
        if self.table is None:
            np.copyto(out, codes.view(np.float16))
        else:  # all codes are in range; "clip" only saves numpy a buffered copy
            np.take(self.table, codes, out=out, mode="clip")


class WideFloat(_Float):
    """A format with the exponents of float32 (BF16, TF32), by integer arithmetic on the word: an
    addition, then low bits are dropped. To nearest, ties go to even, or away from zero if the
    hardware does that (TF32)."""

    def __init__(self, fmt: FloatFormat) -> None:
        super().__init__(fmt)
        self.dropped = np.uint32(32 - fmt.bits)
        self.ties_away = fmt.hardware_rounding is Rounding.NEAREST_AWAY

    def _words(self, x: Float32, noise: Words | None) -> Words:
        words: Words = x.view(np.uint32) & MAGNITUDE
        np.clip(words, np.uint32(0), self.largest.view(np.uint32), out=words)
        words = add_to_words(words, int(self.dropped), self.ties_away, noise)
        words &= np.uint32(0xFFFF_FFFF) << self.dropped
        words |= x.view(np.uint32) & SIGN
        return words

    def round(self, x: Float32, noise: Words | None) -> Float32:
        return self._words(x, noise).view(np.float32)

    def codes(self, x: Float32, noise: Words | None) -> npt.NDArray[Any]:
        return (self._words(x, noise) >> self.dropped).astype(self.code_dtype)

    def numbers(self, codes: npt.NDArray[Any], out: Float32) -> None:
        words = out.view(np.uint32)
        np.copyto(words, codes)
        words <<= self.dropped


class FixedPoint:
    """MXINT8: int8 counting 1/64, from -127 to 127."""

    code_dtype: np.dtype[Any] = np.dtype(np.int8)
    largest = np.float32(127 / 64)
    smallest_normal = np.float32(1 / 64)
    mantissa_bits = 6
    nan_code: int | None = None
    infinity_codes: tuple[int, int] | None = None

    def _steps(self, x: Float32, noise: Words | None) -> Float32:
        return to_integers(np.clip(x * np.float32(64), -127, 127), noise)

    def codes(self, x: Float32, noise: Words | None) -> npt.NDArray[Any]:
        return self._steps(x, noise).astype(np.int8)

    def round(self, x: Float32, noise: Words | None) -> Float32:
        return self._steps(x, noise) * np.float32(1 / 64)

    def numbers(self, codes: npt.NDArray[Any], out: Float32) -> None:
        np.multiply(codes, np.float32(1 / 64), out=out)


NumberFormat: TypeAlias = NarrowFloat | WideFloat | FixedPoint
