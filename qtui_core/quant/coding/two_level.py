"""NVFP4: E2M1 elements under an E4M3 scale for 16 of them, under one scale of the tensor.

Source: `nvfp4_quantize` of torchao 0.18 (`prototype/mx_formats/nvfp4_tensor.py`), in float32
operation by operation, so that codes and scales are its bytes.
"""

from __future__ import annotations

import numpy as np

from qtui_core.formats import E2M1, E4M3
from qtui_core.quant.coding.block_coder import BlockCoder, FloatElements
from qtui_core.quant.coding.coder import Codes, GroupScales
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.rounding import NEAREST, SchemeRounding

LARGEST_ELEMENT = np.float32(float(E2M1.max))
LARGEST_SCALE = np.float32(float(E4M3.max))
#: torchao keeps scales of blocks among the normal numbers of E4M3.
SMALLEST_SCALE = np.float32(float(E4M3.min_normal))
#: absmax of the tensor over the scale of the tensor: 6 x 448.
TENSOR_STEPS = LARGEST_ELEMENT * LARGEST_SCALE
#: The reciprocal of this scale times the smallest scale of a block is still a float32.
SMALLEST_TENSOR_SCALE = np.float32(2.0**-120)


class TwoLevelCoder(BlockCoder):
    """Scale of the tensor t = absmax / 2688, so that the block with the largest element has the
    scale 448; scale of a block s = absmax / 6 / t rounded to nearest even in E4M3, from 2^-6 to
    448; an element is x times ((1 / t) / s), rounded to nearest even unless the scheme says
    otherwise, at most 6 in magnitude. It is read as E2M1 times (t s). The last block of a row may
    be short; torchao refuses such rows.

    A tensor of zeros, or so small that 1 / t would overflow, has t = 2^-120; torchao then has NaN
    scales. NaN and infinities are left out of both scales.

    compressed-tensors 0.20 keeps 2688 / absmax instead of t, multiplies absmax / 6 by it, lets
    scales of blocks be subnormal (one that is 0 becomes 2^-3), and divides elements by the scale
    instead of multiplying by its reciprocal: a few codes beside ties differ.
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
        """The coder of a tensor of this largest magnitude."""
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
