"""Integers: q = round(x / scale) + zero point, as torchao rounds and GGUF's Q4_0 does."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtui_core.quant.coder import SMALLEST_NORMAL, Coder, Codes, GroupScales, keep_finite
from qtui_core.quant.elements import Float32
from qtui_core.quant.grouping import Extent, group_views
from qtui_core.quant.layout import Layout
from qtui_core.quant.parallel import Scratch


class SymmetricCoder(Coder):
    """Signed codes without a zero point; x is multiplied by 1/scale and rounded half to even.

    Rule "absmax": scale = absmax / (2^(b-1) - 1), codes +-(2^(b-1) - 1); torchao with that
    quant_min and quant_max. Rule "full": scale = absmax / ((2^b - 1) / 2), all 2^b codes;
    torchao's MappingType.SYMMETRIC.
    """

    extent = Extent.ABSMAX
    code_dtype = np.dtype(np.int8)

    def __init__(self, bits: int, rule: str) -> None:
        self.highest = 2 ** (bits - 1) - 1
        self.lowest = -self.highest if rule == "absmax" else -self.highest - 1
        self.half_range = np.float32((self.highest - self.lowest) / 2)
        self.smallest_extent = float(self.half_range * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / self.half_range
        return GroupScales(np.maximum(scale, SMALLEST_NORMAL))

    def _round(self, x: Float32, scale: Float32, out: Float32) -> None:
        np.multiply(x, np.float32(1) / scale, out=out)
        np.rint(out, out=out)
        np.clip(out, self.lowest, self.highest, out=out)

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        level = scratch.take("level", x.size, np.float32)
        for (x_view, out), (scale,) in group_views(layout, (x, level), (scales.scale,)):
            self._round(x_view, scale, out)
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
        for (x_view, view), (scale,) in group_views(layout, (x, out), (scales.scale,)):
            self._round(x_view, scale, view)
            np.multiply(view, scale, out=view)
        keep_finite(out, scales)


class SignedCoder(Coder):
    """GGUF's Q4_0 rule for any width: scale = m / -2^(b-1), where m is the first element of
    the largest magnitude, so that m has the lowest code exactly. Codes are
    trunc(x / scale + 2^(b-1) + 1/2) - 2^(b-1): ties go up, as there. The scale may be
    negative, is kept in float32 (Q4_0 stores float16) and is 0 for a group of zeros.
    """

    extent = Extent.SIGNED
    code_dtype = np.dtype(np.int8)

    def __init__(self, bits: int) -> None:
        self.half = 2 ** (bits - 1)
        self.smallest_extent = float(self.half * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / np.float32(-self.half)
        return GroupScales(np.where(np.abs(scale) < SMALLEST_NORMAL, np.float32(0), scale))

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        level = scratch.take("level", x.size, np.float32)
        self._round(layout, x, scales, level)
        np.copyto(codes, level, casting="unsafe")

    def _round(self, layout: Layout, x: Float32, scales: GroupScales, out: Float32) -> None:
        zero = scales.scale == 0
        inverse = np.float32(1) / np.where(zero, np.float32(1), scales.scale)
        inverse[zero] = 0
        for (x_view, view), (factor,) in group_views(layout, (x, out), (inverse,)):
            np.multiply(x_view, factor, out=view)
        out += np.float32(self.half + 0.5)
        np.clip(out, 0, 2 * self.half - 1, out=out)
        np.floor(out, out=out)
        out -= np.float32(self.half)

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        for (view, code), (scale,) in group_views(layout, (out, codes), (scales.scale,)):
            np.copyto(view, code)
            view *= scale
        keep_finite(out, scales)


class AsymmetricCoder(Coder):
    """Codes 0 to 2^b - 1: scale = (max - min) / (2^b - 1) over a range made to include 0,
    zero point = round(-min / scale), q = round(x * (1/scale)) + zero point, rounded half to
    even before the zero point is added. torchao's MappingType.ASYMMETRIC."""

    extent = Extent.MIN_MAX
    code_dtype = np.dtype(np.uint8)

    def __init__(self, bits: int) -> None:
        self.highest = 2**bits - 1
        self.smallest_extent = float(self.highest * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        low, high = np.minimum(extents[0], 0), np.maximum(extents[1], 0)
        steps = np.float32(self.highest)
        scale = (high - low) / steps
        # A range wider than float32 can hold is divided before it is subtracted.
        scale = np.where(np.isfinite(scale), scale, high / steps - low / steps)
        scale = np.maximum(scale, SMALLEST_NORMAL).astype(np.float32)
        zero_point = np.clip(-np.rint(low / scale), 0, self.highest)
        return GroupScales(scale, zero_point.astype(np.uint8))

    def _round(self, x: Float32, scale: Float32, zero_point: Any, out: Float32) -> None:
        np.multiply(x, np.float32(1) / scale, out=out)
        np.rint(out, out=out)
        out += zero_point
        np.clip(out, 0, self.highest, out=out)

    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        level = scratch.take("level", x.size, np.float32)
        per_group = (scales.scale, scales.zero_point)
        for (x_view, view), (scale, zero_point) in group_views(layout, (x, level), per_group):
            self._round(x_view, scale, zero_point, view)
        np.copyto(codes, level, casting="unsafe")

    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        per_group = (scales.scale, scales.zero_point)
        for (view, code), (scale, zero_point) in group_views(layout, (out, codes), per_group):
            np.copyto(view, code)
            view -= zero_point
            view *= scale
        keep_finite(out, scales)

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        per_group = (scales.scale, scales.zero_point)
        for (x_view, view), (scale, zero_point) in group_views(layout, (x, out), per_group):
            self._round(x_view, scale, zero_point, view)
            view -= zero_point
            view *= scale
        keep_finite(out, scales)
