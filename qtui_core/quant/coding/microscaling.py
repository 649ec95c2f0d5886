"""Blocks of small elements under an 8-bit scale: the OCP Microscaling formats and NVFP4.

An element is x times the reciprocal of the scale, rounded to the element format. It is read back as
the number of the format times the scale.

Sources: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6.3. For NVFP4 (E2M1
elements, an E4M3 scale for each 16 of them, and one scale for the tensor): `nvfp4_quantize` of
torchao 0.18 (`prototype/mx_formats/nvfp4_tensor.py`). Its float32 operations are repeated one by
one, so that codes and scales have the same bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import numpy as np

from qtui_core.formats import E2M1, E4M3, FloatFormat, get_format
from qtui_core.quant.coding.coder import Coder, Codes, GroupScales, keep_finite
from qtui_core.quant.coding.floats import NarrowRounder
from qtui_core.quant.coding.levels import element_values
from qtui_core.quant.coding.scale_rules import E8M0_BIAS, power_of_two, scale_codes
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent, group_views
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.rounding import NEAREST, SchemeRounding


class BlockCoder(Coder):
    """What the coders of the mx formats and of NVFP4 have in common; they differ in their
    scales."""

    extent = Extent.ABSMAX

    def __init__(self, elements: ElementFormat) -> None:
        self.elements = elements
        self.code_dtype = elements.dtype
        self.nan_code = elements.nan_code
        self.infinity_codes = elements.infinity_codes

    @abstractmethod
    def inverse(self, scales: GroupScales) -> Float32:
        """The factor that elements are multiplied by, float32 `[groups]`."""

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
    """The numbers of one format without a scale: from float32 to codes, and back.

    Attributes:
        largest: the largest number.
        mantissa_bits: those of a number as large as the largest.
    """

    largest: np.float32
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


class MicroscalingCoder(BlockCoder):
    """Blocks of 32 elements of a row under a scale 2^k, k from -127 to 127, which is stored as the
    code k + 127 (E8M0). An element is x / 2^k, which is exact, rounded to the element format (to
    nearest even unless the scheme says otherwise) and at most its largest number. The last block of
    a row may be short; torchao refuses such rows.

    The exponent is read from the bits of absmax, not computed as a floating-point logarithm, which
    is wrong beside powers of two. `rceil` gives the result of NVIDIA's instruction
    `cvt.rp.satfinite.ue8m0x2`. A block of zeros has code 0.

    If a block is so small that its code is 0, it is rounded here with the scale that it is read
    with, 2^-127. torchao rounds it with 2^-126 (with 1 under `rceil`) and reads it with 2^-127, so
    that it comes back at half its size, or as zeros. NaN and infinities do not count for the scale,
    as everywhere in this library; in torchao and in the specification they make the whole block
    NaN.

    MXINT8 has steps of 1/64 up to 1.984375 = 127/64. The code of -2 is not used, so that levels are
    symmetric; the specification permits this, and its authors' emulation does the same.
    """

    scale_format = "e8m0"

    def __init__(self, element: str, rule: str, rounding: SchemeRounding = NEAREST) -> None:
        super().__init__(make_elements(element, rounding))
        self.rule = rule
        self.smallest_extent = float(self.elements.largest) * 2.0**-E8M0_BIAS

    def scales(self, extents: Float32, size: int) -> GroupScales:
        largest, mantissa_bits = self.elements.largest, self.elements.mantissa_bits
        code = scale_codes(extents[0], self.rule, largest, mantissa_bits)
        return GroupScales(power_of_two(code), code=code)

    def inverse(self, scales: GroupScales) -> Float32:
        # The reciprocal of a power of two is a power of two, possibly a subnormal number.
        return np.float32(1) / scales.scale


LARGEST_ELEMENT = np.float32(float(E2M1.max))
#: 448, the largest scale of a block in NVFP4.
LARGEST_SCALE = np.float32(float(E4M3.max))
#: torchao keeps scales of blocks among the normal numbers of E4M3.
SMALLEST_SCALE = np.float32(float(E4M3.min_normal))
#: The absmax of the tensor divided by its scale: 6 x 448.
TENSOR_STEPS = LARGEST_ELEMENT * LARGEST_SCALE
#: The reciprocal of this scale times the smallest scale of a block is still a float32.
SMALLEST_TENSOR_SCALE = np.float32(2.0**-120)


class TwoLevelCoder(BlockCoder):
    """The coder of NVFP4, which has a scale of the tensor, t, and a scale of each block, s.

    t = absmax / 2688, so that the block with the largest element has the scale 448. s = absmax of
    the block / 6 / t, rounded to nearest even in E4M3, from 2^-6 to 448. An element is x times ((1
    / t) / s), rounded to nearest even unless the scheme says otherwise, at most 6 in magnitude. It
    is read back as the E2M1 number times (t s). The last block of a row may be short; torchao
    refuses such rows.

    If a tensor is all zeros, or so small that 1 / t would overflow, t is 2^-120; torchao then has
    NaN scales. NaN and infinities do not count for either scale.

    compressed-tensors 0.20 stores 2688 / absmax instead of t, multiplies absmax / 6 by it, allows
    subnormal scales of blocks (a scale of 0 becomes 2^-3), and divides elements by the scale
    instead of multiplying by its reciprocal. So a few codes beside ties differ.
    """

    scale_format = "e4m3"

    def __init__(
        self, tensor_absmax: float = float(TENSOR_STEPS), rounding: SchemeRounding = NEAREST
    ):
        super().__init__(FloatElements(E2M1, rounding))
        scale = np.float32(tensor_absmax) / TENSOR_STEPS
        self.tensor = max(scale, SMALLEST_TENSOR_SCALE)
        self.tensor_scale = float(self.tensor)
        self.rounding = rounding
        self.blocks = FloatElements(E4M3, NEAREST)
        self.smallest_extent = float(TENSOR_STEPS * SMALLEST_TENSOR_SCALE)

    def for_tensor(self, absmax: float) -> TwoLevelCoder:
        """The coder for a tensor with this largest magnitude."""
        return TwoLevelCoder(absmax, self.rounding)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / LARGEST_ELEMENT / self.tensor
        scale = np.clip(scale, SMALLEST_SCALE, LARGEST_SCALE).astype(np.float32)
        code = np.empty(scale.shape, np.uint8)
        self.blocks.encode(scale, code, Scratch())
        return GroupScales(self.tensor * self._block_scales(code), code=code)

    def inverse(self, scales: GroupScales) -> Float32:
        assert scales.code is not None
        return np.float32(1) / self.tensor / self._block_scales(scales.code)

    def _block_scales(self, code: Codes) -> Float32:
        return self.blocks.table[code]
