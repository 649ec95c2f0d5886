"""What the coders of integers share: levels whose codes are the levels themselves."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from qtui_core.quant.coding.coder import Coder, Codes, GroupScales, keep_finite
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import group_views
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.rounding import SchemeRounding, Truncate


class IntegerCoder(Coder):
    """A code is the integer that `_round` gives, and stands for what `_to_values` makes of it."""

    @abstractmethod
    def _round(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        """Codes of the elements, as float32, written to `out`."""

    def _to_values(self, layout: Layout, scales: GroupScales, out: Float32) -> None:
        """Codes, as float32, become values where they are: code times scale."""
        for (view,), (scale,) in group_views(layout, (out,), (scales.scale,)):
            view *= scale
        keep_finite(out, scales)

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        level = scratch.take("level", x.size, np.float32)
        self._round(layout, x, scales, level, scratch)
        np.copyto(codes, level, casting="unsafe")

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        np.copyto(out, codes)
        self._to_values(layout, scales, out)

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        self._round(layout, x, scales, out, scratch)
        self._to_values(layout, scales, out)


def in_steps(
    layout: Layout, x: Float32, scales: GroupScales, rounding: SchemeRounding, out: Float32
) -> None:
    """x over the scale of its group, to be rounded.

    To nearest and at random, x is multiplied by 1/scale, as in torchao. Toward zero it is divided:
    the reciprocal would cut a step off more of the values that are whole steps.
    """
    if isinstance(rounding, Truncate):
        for (view, target), (scale,) in group_views(layout, (x, out), (scales.scale,)):
            np.divide(view, scale, out=target)
        return
    inverse = np.float32(1) / scales.scale if scales.inverse is None else scales.inverse
    for (view, target), (factor,) in group_views(layout, (x, out), (inverse,)):
        np.multiply(view, factor, out=target)
