"""Ternary weights, as BitNet b1.58 makes them.

Sources: Ma et al. 2024, arXiv:2402.17764, equations 1 to 3, and the function `weight_quant` that
its authors published with it ("The Era of 1-bit LLMs: Training Tips, Code and FAQ"), which
transformers has as `integrations.bitnet.WeightQuant`.
"""

from __future__ import annotations

import numpy as np

from qtui_core.quant.coder import Coder, Codes, GroupScales, keep_finite
from qtui_core.quant.elements import Float32
from qtui_core.quant.grouping import Extent, group_views
from qtui_core.quant.layout import Layout
from qtui_core.quant.parallel import Scratch

SMALLEST_SCALE = np.float32(1e-5)


class TernaryCoder(Coder):
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

    def _round(self, layout: Layout, x: Float32, scales: GroupScales, out: Float32) -> None:
        for (x_view, view), (scale,) in group_views(layout, (x, out), (scales.scale,)):
            np.multiply(x_view, np.float32(1) / scale, out=view)
        np.rint(out, out=out)
        np.clip(out, -1, 1, out=out)

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        level = scratch.take("level", x.size, np.float32)
        self._round(layout, x, scales, level)
        np.copyto(codes, level, casting="unsafe")

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        for (view, code), (scale,) in group_views(layout, (out, codes), (scales.scale,)):
            np.copyto(view, code)
            view *= scale
        keep_finite(out, scales)

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self._round(layout, x, scales, out)
        for (view,), (scale,) in group_views(layout, (out,), (scales.scale,)):
            view *= scale
        keep_finite(out, scales)
