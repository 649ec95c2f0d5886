"""Ternary weights, as BitNet b1.58 makes them.

Sources: Ma et al. 2024, arXiv:2402.17764, equations 1 to 3, and the function `weight_quant` that
its authors published with it ("The Era of 1-bit LLMs: Training Tips, Code and FAQ"), which
transformers has as `integrations.bitnet.WeightQuant`.
"""

from __future__ import annotations

import numpy as np

from qtui_core.quant.coding.coder import GroupScales
from qtui_core.quant.coding.integer_coder import IntegerCoder, in_steps
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.rounding import NEAREST

SMALLEST_SCALE = np.float32(1e-5)


class TernaryCoder(IntegerCoder):
    """Codes -1, 0 and 1: scale = mean magnitude, at least 1e-5; q = round(x * (1/scale)), half to
    even, clipped. The published function keeps the scale in float32 as its reciprocal; the value
    of a code is here the scale itself, which can differ from its `1 / (1/scale)` in the last bit.

    Four codes of 2 bits share a byte in storage; three values need no more than log2(3) = 1.58,
    which five of them in a byte come near to. The mean is of the finite elements.
    """

    extent = Extent.ABS_MEAN
    code_dtype = np.dtype(np.int8)
    smallest_extent = float(SMALLEST_SCALE)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        return GroupScales(np.maximum(extents[0], SMALLEST_SCALE))

    def _round(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        in_steps(layout, x, scales, NEAREST, out)
        np.rint(out, out=out)
        np.clip(out, -1, 1, out=out)
