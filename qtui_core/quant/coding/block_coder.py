"""Blocks of small elements under a scale that is a small number itself.

An element is x times the reciprocal of the scale, rounded to the element format; it is read as the
number of the format times the scale.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import numpy as np

from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.coding.coder import Coder, Codes, GroupScales, keep_finite
from qtui_core.quant.coding.floats import NarrowRounder
from qtui_core.quant.coding.levels import element_values
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent, group_views
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.rounding import NEAREST, SchemeRounding


class BlockCoder(Coder):
    """What the mx formats and NVFP4 share; they differ in their scales."""

    extent = Extent.ABSMAX

    def __init__(self, elements: ElementFormat) -> None:
        self.elements = elements
        self.code_dtype = elements.dtype
        self.nan_code = elements.nan_code
        self.infinity_codes = elements.infinity_codes

    @abstractmethod
    def inverse(self, scales: GroupScales) -> Float32:
        """What elements are multiplied by, float32 `[groups]`."""

    def _scaled(self, layout: Layout, x: Float32, scales: GroupScales, scratch: Scratch) -> Float32:
        scaled: Float32 = scratch.take("scaled", x.size, np.float32)
        factors = self.inverse(scales)
        for (view, out), (factor,) in group_views(layout, (x, scaled), (factors,)):
            np.multiply(view, factor, out=out)
        return scaled

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        self.elements.encode(self._scaled(layout, x, scales, scratch), codes, scratch)

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self.elements.decode(codes, out)
        self._multiply(layout, scales, out)

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self.elements.round(self._scaled(layout, x, scales, scratch), out, scratch)
        self._multiply(layout, scales, out)

    def _multiply(self, layout: Layout, scales: GroupScales, out: Float32) -> None:
        for (view,), (scale,) in group_views(layout, (out,), (scales.scale,)):
            np.multiply(view, scale, out=view)
        keep_finite(out, scales)


class ElementFormat(Protocol):
    """Numbers of one format, without a scale: float32 in, codes out, and back.

    Attributes:
        largest: the largest number.
        exponent: floor(log2(largest)).
        mantissa_bits: of a number as large as the largest.
    """

    largest: np.float32
    exponent: int
    mantissa_bits: int
    dtype: np.dtype[np.generic]
    nan_code: int | None
    infinity_codes: tuple[int, int] | None

    def encode(self, x: Float32, codes: Codes, scratch: Scratch) -> None: ...
    def decode(self, codes: Codes, out: Float32) -> None: ...
    def round(self, x: Float32, out: Float32, scratch: Scratch) -> None: ...


class FloatElements:
    """A float of 8 bits or fewer; codes uint8."""

    dtype: np.dtype[np.generic] = np.dtype(np.uint8)

    def __init__(self, fmt: FloatFormat, rounding: SchemeRounding) -> None:
        self.rounder = NarrowRounder(fmt, rounding)
        self.largest = np.float32(float(fmt.max))
        self.exponent = fmt.max_exponent
        self.mantissa_bits = fmt.mantissa_bits
        self.nan_code = fmt.nan_code
        self.infinity_codes: tuple[int, int] | None = None
        if fmt.infinity_code is not None:
            self.infinity_codes = (fmt.infinity_code, fmt.infinity_code | fmt.sign_bit)
        self.table = element_values(fmt).astype(np.float32)

    def encode(self, x: Float32, codes: Codes, scratch: Scratch) -> None:
        self.rounder.codes(x, codes, scratch)

    def decode(self, codes: Codes, out: Float32) -> None:
        # Codes are in range by construction; "clip" only spares numpy a buffered copy.
        np.take(self.table, codes, out=out, mode="clip")

    def round(self, x: Float32, out: Float32, scratch: Scratch) -> None:
        self.rounder.round(x, out, scratch)


class FixedPointElements:
    """MXINT8: int8 counting 1/64, from -127 to 127."""

    dtype: np.dtype[np.generic] = np.dtype(np.int8)
    largest = np.float32(127 / 64)
    exponent = 0
    mantissa_bits = 6
    nan_code: int | None = None
    infinity_codes: tuple[int, int] | None = None

    def __init__(self, rounding: SchemeRounding) -> None:
        self.rounding = rounding

    def _steps(self, x: Float32, out: Float32, scratch: Scratch) -> None:
        np.multiply(x, np.float32(64), out=out)
        np.clip(out, -127, 127, out=out)
        self.rounding.to_integers(out, scratch)

    def encode(self, x: Float32, codes: Codes, scratch: Scratch) -> None:
        steps = scratch.take("level", x.size, np.float32)
        self._steps(x, steps, scratch)
        np.copyto(codes, steps, casting="unsafe")

    def decode(self, codes: Codes, out: Float32) -> None:
        np.multiply(codes, np.float32(1 / 64), out=out)

    def round(self, x: Float32, out: Float32, scratch: Scratch) -> None:
        self._steps(x, out, scratch)
        out *= np.float32(1 / 64)


def make_elements(name: str, rounding: SchemeRounding = NEAREST) -> ElementFormat:
    """The elements of a format of the catalogue."""
    fmt = get_format(name)
    if isinstance(fmt, FloatFormat):
        return FloatElements(fmt, rounding)
    return FixedPointElements(rounding)
