"""Blocks of small elements under an 8-bit scale: the OCP Microscaling formats and NVFP4.

An element is x times the reciprocal of the scale, rounded to the element format. It is read back as
the number of the format times the scale.

Sources: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6.3. For NVFP4 (E2M1
elements, an E4M3 scale for each 16 of them, and one scale for the tensor): `nvfp4_quantize` of
torchao 0.18 (`prototype/mx_formats/nvfp4_tensor.py`). Its float32 operations are repeated one by
one, so that codes and scales have the same bytes.
"""

from __future__ import annotations

import numpy as np

from qtui_core.formats import E2M1, E4M3, FloatFormat, get_format
from qtui_core.quant.coders import GroupScales, NumberCoder
from qtui_core.quant.layout import Extent, Float32
from qtui_core.quant.levels import E8M0_BIAS, power_of_two, scale_codes
from qtui_core.quant.narrow import FixedPoint, NarrowFloat


class MicroscalingCoder(NumberCoder):
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

    extent = Extent.ABSMAX
    scale_format = "e8m0"

    def __init__(self, element: str, rule: str) -> None:
        fmt = get_format(element)
        super().__init__(NarrowFloat(fmt) if isinstance(fmt, FloatFormat) else FixedPoint())
        self.rule = rule
        self.smallest_extent = float(self.format.largest) * 2.0**-E8M0_BIAS

    def scales(self, extents: Float32, size: int) -> GroupScales:
        largest, mantissa_bits = self.format.largest, self.format.mantissa_bits
        code = scale_codes(extents[0], self.rule, largest, mantissa_bits)
        scale = power_of_two(code)
        # The reciprocal of a power of two is a power of two, possibly a subnormal number.
        return GroupScales(scale, code=code, inverse=np.float32(1) / scale)


LARGEST_ELEMENT = np.float32(float(E2M1.max))
#: 448, the largest scale of a block in NVFP4.
LARGEST_SCALE = np.float32(float(E4M3.max))
#: torchao keeps scales of blocks among the normal numbers of E4M3.
SMALLEST_SCALE = np.float32(float(E4M3.min_normal))
#: The absmax of the tensor divided by its scale: 6 x 448.
TENSOR_STEPS = LARGEST_ELEMENT * LARGEST_SCALE
#: The reciprocal of this scale times the smallest scale of a block is still a float32.
SMALLEST_TENSOR_SCALE = np.float32(2.0**-120)


class TwoLevelCoder(NumberCoder):
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

    extent = Extent.ABSMAX
    scale_format = "e4m3"

    def __init__(self, tensor_absmax: float = float(TENSOR_STEPS)):
        super().__init__(NarrowFloat(E2M1))
        scale = np.float32(tensor_absmax) / TENSOR_STEPS
        self.tensor = max(scale, SMALLEST_TENSOR_SCALE)
        self.tensor_scale = float(self.tensor)
        self.blocks = NarrowFloat(E4M3)
        self.smallest_extent = float(TENSOR_STEPS * SMALLEST_TENSOR_SCALE)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / LARGEST_ELEMENT / self.tensor
        scale = np.clip(scale, SMALLEST_SCALE, LARGEST_SCALE).astype(np.float32)
        code = self.blocks.codes(scale, None)
        block = np.empty(code.shape, np.float32)
        self.blocks.numbers(code, block)
        return GroupScales(
            self.tensor * block, code=code, inverse=np.float32(1) / self.tensor / block
        )
