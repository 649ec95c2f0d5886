"""Floating-point formats: float32 rounded to fewer bits, by arithmetic on whole segments.

These are fast versions of `qtui_core.formats.array`; tests compare the two. Values beyond the
largest finite number become that number; in a scheme that does not saturate they become infinity,
or NaN if the format has no infinity. Infinities stay if the format has them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtui_core.formats import BF16, FP16, FloatFormat, decode
from qtui_core.formats import Rounding as FormatRounding
from qtui_core.quant.coding.coder import (
    NO_SCALES,
    SMALLEST_NORMAL,
    Coder,
    Codes,
    GroupScales,
    keep_finite,
)
from qtui_core.quant.coding.scale_rules import FLOAT32_BIAS, FLOAT32_MANTISSA
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent, group_views
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.rounding import NEAREST, SchemeRounding, Truncate

Bits = npt.NDArray[np.uint32]

MAGNITUDE = np.uint32(0x7FFF_FFFF)
SIGN = np.uint32(0x8000_0000)
EXPONENT = np.uint32(0x7F80_0000)
ZERO = np.float32(0)


class NarrowRounder:
    """Rounds to a format whose exponents lie well inside those of float32 (16 bits and fewer).

    Let e be the exponent of the value and m the number of kept mantissa bits. Adding
    M = 2^(e + 23 - m) leaves exactly the kept bits: the addition itself rounds to nearest even, and
    the low bits of the sum are the rounded significand as an integer. Other roundings change it by
    one.
    """

    def __init__(
        self, fmt: FloatFormat, rounding: SchemeRounding = NEAREST, saturate: bool = True
    ) -> None:
        self.rounding = rounding
        self.largest = np.float32(float(fmt.max))
        # Toward zero, no finite value exceeds the largest number.
        self.saturate = saturate or isinstance(rounding, Truncate)
        # Without saturation, values are rounded as if there were larger exponents, and overflow is
        # detected afterwards.
        self.limit = self.largest if self.saturate else np.float32(2.0 ** (fmt.max_exponent + 1))
        self.max_code = np.uint32(fmt.max_code)
        self.beyond = np.float32(np.nan if fmt.infinity_code is None else np.inf)
        special = fmt.nan_code if fmt.infinity_code is None else fmt.infinity_code
        self.beyond_code = np.uint32(special or 0)
        self.lowest_exponent = np.uint32((fmt.min_exponent + FLOAT32_BIAS) << FLOAT32_MANTISSA)
        self.dropped = np.uint32(FLOAT32_MANTISSA - fmt.mantissa_bits)
        #: All codes are too large by this, because of the exponent of the addend.
        lowest_addend = self.lowest_exponent + (self.dropped << np.uint32(FLOAT32_MANTISSA))
        self.excess = lowest_addend >> self.dropped
        self.sign_bit = fmt.sign_bit

    def _add(self, x: Float32, scratch: Scratch) -> tuple[Float32, Bits]:
        """|x| + M and the bits of M."""
        total = scratch.take("sum", x.size, np.float32)
        addend = scratch.take("addend", x.size, np.uint32)
        np.abs(x, out=total)
        # numpy clips three times faster than it takes a maximum with a scalar.
        np.clip(total, ZERO, self.limit, out=total)
        np.bitwise_and(total.view(np.uint32), EXPONENT, out=addend)
        np.clip(addend, self.lowest_exponent, EXPONENT, out=addend)
        addend += self.dropped << np.uint32(FLOAT32_MANTISSA)
        if self.rounding is NEAREST:
            total += addend.view(np.float32)
        else:
            exact = scratch.take("exact", x.size, np.float32)
            exact[...] = total
            total += addend.view(np.float32)
            self.rounding.correct_sums(total, addend.view(np.float32), exact, scratch)
        return total, addend

    def round(self, x: Float32, out: Float32, scratch: Scratch) -> None:
        """Writes the numbers of the format, with -0, to `out`, which may be `x`."""
        sign = np.bitwise_and(x.view(np.uint32), SIGN, out=scratch.take("sign", x.size, np.uint32))
        total, addend = self._add(x, scratch)
        np.subtract(total, addend.view(np.float32), out=out)
        if not self.saturate:
            out[out > self.largest] = self.beyond
        np.bitwise_or(out.view(np.uint32), sign, out=out.view(np.uint32))

    def codes(self, x: Float32, codes: Codes, scratch: Scratch) -> None:
        """The codes of what `round` gives."""
        total, addend = self._add(x, scratch)
        result = total.view(np.uint32)
        result -= addend  # the significand as an integer, hidden bit included
        addend >>= self.dropped
        result += addend
        if not self.saturate:
            result[result > self.max_code + self.excess] = self.beyond_code + self.excess
        # From here on in the width of a code, in which arithmetic costs a quarter; the excess high
        # bits are dropped.
        np.copyto(codes, result, casting="unsafe")
        codes -= self.excess.astype(codes.dtype)
        negative = np.less(x.view(np.int32), 0, out=scratch.take("negative", x.size, np.bool_))
        sign = negative.view(np.uint8)
        if codes.dtype != np.uint8:
            sign = scratch.take("sign", x.size, codes.dtype)
            np.copyto(sign, negative)
        sign *= codes.dtype.type(self.sign_bit)  # numpy shifts bytes one at a time
        codes |= sign


class WideRounder:
    """Rounds to a format with the exponents of float32 (BF16, TF32) by integer arithmetic on the
    word: an addition, then low bits are dropped. To nearest, ties go to even, or away from zero if
    the hardware does that (TF32). A carry beyond the largest number makes an infinity."""

    def __init__(
        self, fmt: FloatFormat, rounding: SchemeRounding = NEAREST, saturate: bool = True
    ) -> None:
        self.rounding = rounding
        self.saturate = saturate
        self.largest = np.float32(float(fmt.max))
        self.dropped = np.uint32(32 - fmt.bits)
        self.ties_away = fmt.hardware_rounding is FormatRounding.NEAREST_AWAY

    def _words(self, x: Float32, words: Bits, scratch: Scratch) -> None:
        sign = np.bitwise_and(x.view(np.uint32), SIGN, out=scratch.take("sign", x.size, np.uint32))
        np.bitwise_and(x.view(np.uint32), MAGNITUDE, out=words)
        if self.saturate:
            np.clip(words, np.uint32(0), self.largest.view(np.uint32), out=words)
        self.rounding.add_to_words(words, int(self.dropped), self.ties_away, scratch)
        words &= np.uint32(0xFFFF_FFFF) << self.dropped
        words |= sign

    def round(self, x: Float32, out: Float32, scratch: Scratch) -> None:
        """The number of the format."""
        self._words(x, out.view(np.uint32), scratch)

    def codes(self, x: Float32, codes: Codes, scratch: Scratch) -> None:
        """The codes of what `round` gives."""
        words = scratch.take("words", x.size, np.uint32)
        self._words(x, words, scratch)
        words >>= self.dropped
        np.copyto(codes, words, casting="unsafe")


class _FloatCoder(Coder):
    """What scaled floats and casts share."""

    def __init__(
        self, fmt: FloatFormat, rounding: SchemeRounding = NEAREST, saturate: bool = True
    ) -> None:
        narrow = fmt.exponent_bits < BF16.exponent_bits
        make = NarrowRounder if narrow else WideRounder
        self.rounder = make(fmt, rounding, saturate)
        self.saturate = saturate
        self.largest = float(fmt.max)
        self.smallest_normal = np.float32(float(fmt.min_normal))
        self.nan_code = fmt.nan_code
        if fmt.infinity_code is not None:
            self.infinity_codes = (fmt.infinity_code, fmt.infinity_code | fmt.sign_bit)
        width = 8 if fmt.bits <= 8 else 16 if fmt.bits <= 16 else 32
        self.code_dtype = np.dtype(f"uint{width}")
        self.dropped = np.uint32(32 - fmt.bits)
        self.is_half = fmt is FP16
        self.table: Float32 | None = None
        if fmt.bits <= 8:
            values = [decode(fmt, code).to_float() for code in range(fmt.code_count)]
            self.table = np.array(values, np.float32)

    def _values(self, codes: Codes, out: Float32) -> None:
        if self.table is not None:
            # All codes are in range; "clip" only saves numpy a buffered copy.
            np.take(self.table, codes, out=out, mode="clip")
        elif self.is_half:
            np.copyto(out, codes.view(np.float16))
        else:
            words = out.view(np.uint32)
            np.copyto(words, codes)
            words <<= self.dropped


class ScaledFloatCoder(_FloatCoder):
    """A small float with a scale: scale = absmax / largest number, and x / scale is rounded, by
    default to nearest even. As in torchao, x is divided by the scale, not multiplied by its
    reciprocal."""

    extent = Extent.ABSMAX

    def __init__(
        self, fmt: FloatFormat, rounding: SchemeRounding = NEAREST, saturate: bool = True
    ) -> None:
        super().__init__(fmt, rounding, saturate)
        self.smallest_extent = self.largest * float(SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / np.float32(self.largest)
        return GroupScales(np.maximum(scale, SMALLEST_NORMAL))

    def _scaled(self, layout: Layout, x: Float32, scales: GroupScales, scratch: Scratch) -> Float32:
        scaled: Float32 = scratch.take("scaled", x.size, np.float32)
        for (view, out), (scale,) in group_views(layout, (x, scaled), (scales.scale,)):
            np.divide(view, scale, out=out)
        if not self.saturate:
            # The element that sets the scale must become the largest number, but the division may
            # round it to slightly more.
            size = np.abs(scaled)
            rounded_up = (size > self.largest) & (size <= self.largest * np.float32(1 + 2.0**-22))
            scaled[rounded_up] = np.copysign(np.float32(self.largest), scaled[rounded_up])
        return scaled

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        self.rounder.codes(self._scaled(layout, x, scales, scratch), codes, scratch)

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self._values(codes, out)
        self._multiply(layout, scales, out)

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self.rounder.round(self._scaled(layout, x, scales, scratch), out, scratch)
        self._multiply(layout, scales, out)

    def _multiply(self, layout: Layout, scales: GroupScales, out: Float32) -> None:
        for (view,), (scale,) in group_views(layout, (out,), (scales.scale,)):
            np.multiply(view, scale, out=view)
        if self.saturate:
            keep_finite(out, scales)


class CastCoder(_FloatCoder):
    """A format without a scale."""

    extent = None

    def scales(self, extents: Float32, size: int) -> GroupScales:
        return NO_SCALES

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        self.rounder.codes(x, codes, scratch)

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self._values(codes, out)

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self.rounder.round(x, out, scratch)
