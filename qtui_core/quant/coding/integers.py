"""Integers: q = round(x / scale) + zero point, as in torchao and GGUF's Q4_0; and ternary weights,
as in BitNet b1.58.

Sources of ternary weights: Ma et al. 2024, arXiv:2402.17764, equations 1 to 3, and the function
`weight_quant` that the authors published ("The Era of 1-bit LLMs: Training Tips, Code and FAQ"),
which is `integrations.bitnet.WeightQuant` in transformers.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from qtui_core.quant.coding.coder import SMALLEST_NORMAL, Coder, Codes, GroupScales, keep_finite
from qtui_core.quant.coding.scale_rules import integer_range
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent, group_views
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.rounding import NEAREST, SchemeRounding, Truncate


class IntegerCoder(Coder):
    """The common part of integer coders: `_round` makes codes, `_to_values` turns them into
    values."""

    @abstractmethod
    def _round(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        """Writes the codes of the elements, as float32, to `out`."""

    def _to_values(self, layout: Layout, scales: GroupScales, out: Float32) -> None:
        """Turns the codes in `out`, as float32, into values in place: code times scale."""
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
    """Writes x over the scale of its group, not yet rounded, to `out`.

    For rounding to nearest and stochastic rounding, x is multiplied by 1/scale, as in torchao. For
    rounding toward zero it is divided, because with the reciprocal more of the values that are
    whole steps would lose a step.
    """
    if isinstance(rounding, Truncate):
        for (view, target), (scale,) in group_views(layout, (x, out), (scales.scale,)):
            np.divide(view, scale, out=target)
        return
    inverse = np.float32(1) / scales.scale if scales.inverse is None else scales.inverse
    for (view, target), (factor,) in group_views(layout, (x, out), (inverse,)):
        np.multiply(view, factor, out=target)


class SymmetricCoder(IntegerCoder):
    """Signed codes without a zero point: x / scale rounded, by default half to even. The scale is
    absmax over the `steps` of the rule's `integer_range`.

    Rule "absmax": scale = absmax / (2^(b-1) - 1), codes +-(2^(b-1) - 1); torchao with that
    quant_min and quant_max. Rule "full": scale = absmax / ((2^b - 1) / 2), all 2^b codes;
    torchao's MappingType.SYMMETRIC.

    With `from_extent`, x is multiplied by (2^(b-1) - 1) (1 / absmax) instead of the reciprocal of
    the scale, which may differ in the last bit. LLM.int8() in bitsandbytes does so, because torch
    divides a number by a tensor in this way.
    """

    extent = Extent.ABSMAX
    code_dtype = np.dtype(np.int8)

    def __init__(
        self, bits: int, rule: str, rounding: SchemeRounding = NEAREST, from_extent: bool = False
    ) -> None:
        self.rounding, self.from_extent = rounding, from_extent
        codes = integer_range(rule, bits)
        self.lowest, self.highest = codes.lowest, codes.highest
        self.half_range = np.float32(codes.steps)
        self.smallest_extent = float(self.half_range * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = np.maximum(extents[0] / self.half_range, SMALLEST_NORMAL)
        if not self.from_extent:
            return GroupScales(scale)
        extent = np.maximum(extents[0], self.smallest_extent)
        return GroupScales(scale, inverse=self.half_range * (np.float32(1) / extent))

    def _round(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        in_steps(layout, x, scales, self.rounding, out)
        self.rounding.to_integers(out, scratch)
        np.clip(out, self.lowest, self.highest, out=out)


class SignedCoder(IntegerCoder):
    """GGUF's Q4_0 rule for any width: scale = m / -2^(b-1), where m is the first element with the
    largest magnitude, so that m has exactly the lowest code. Codes are
    trunc(x / scale + 2^(b-1) + 1/2) - 2^(b-1): ties go up, as in GGUF. The scale may be negative,
    is float32 (Q4_0 stores float16), and is 0 for a group of zeros.
    """

    extent = Extent.SIGNED
    code_dtype = np.dtype(np.int8)

    def __init__(self, bits: int) -> None:
        self.half = 2 ** (bits - 1)
        self.smallest_extent = float(self.half * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        scale = extents[0] / np.float32(-self.half)
        return GroupScales(np.where(np.abs(scale) < SMALLEST_NORMAL, np.float32(0), scale))

    def _round(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        zero = scales.scale == 0
        inverse = np.float32(1) / np.where(zero, np.float32(1), scales.scale)
        inverse[zero] = 0
        for (x_view, view), (factor,) in group_views(layout, (x, out), (inverse,)):
            np.multiply(x_view, factor, out=view)
        out += np.float32(self.half + 0.5)
        np.clip(out, 0, 2 * self.half - 1, out=out)
        np.floor(out, out=out)
        out -= np.float32(self.half)


def steps_of_range(low: Float32, high: Float32, steps: np.float32) -> Float32:
    """The scales `[groups]` that cut the ranges from `low` to `high` into so many steps."""
    scale = (high - low) / steps
    # A range wider than float32 can hold is divided before it is subtracted.
    scale = np.where(np.isfinite(scale), scale, high / steps - low / steps)
    return np.maximum(scale, SMALLEST_NORMAL).astype(np.float32)


class AsymmetricCoder(IntegerCoder):
    """Codes 0 to 2^b - 1 over a range that is extended to include 0: scale = (max - min) / (2^b -
    1), zero point = round(-min / scale), q = round(x * (1/scale)) + zero point. Rounding is by
    default half to even. torchao's MappingType.ASYMMETRIC."""

    extent = Extent.MIN_MAX
    code_dtype = np.dtype(np.uint8)

    def __init__(self, bits: int, rounding: SchemeRounding = NEAREST) -> None:
        self.rounding = rounding
        self.highest = 2**bits - 1
        self.smallest_extent = float(self.highest * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        low, high = np.minimum(extents[0], 0), np.maximum(extents[1], 0)
        scale = steps_of_range(low, high, np.float32(self.highest))
        zero_point = np.clip(-np.rint(low / scale), 0, self.highest)
        return GroupScales(scale, zero_point.astype(np.uint8))

    def _round(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        in_steps(layout, x, scales, self.rounding, out)
        self.rounding.to_integers(out, scratch)
        for (view,), (zero_point,) in group_views(layout, (out,), (scales.zero_point,)):
            view += zero_point
        np.clip(out, 0, self.highest, out=out)

    def _to_values(self, layout: Layout, scales: GroupScales, out: Float32) -> None:
        per_group = (scales.scale, scales.zero_point)
        for (view,), (scale, zero_point) in group_views(layout, (out,), per_group):
            view -= zero_point
            view *= scale
        keep_finite(out, scales)


class FloatZeroCoder(IntegerCoder):
    """Codes 0 to 2^b - 1 over a range that need not include 0: scale = (max - min) / (2^b - 1). The
    zero point is the value of code 2^(b-1) in the tensor's unit: min + scale 2^(b-1).
    q = round((x - (zero point - scale 2^(b-1))) / scale), by default half to even; the value of q
    is (q - 2^(b-1)) scale + zero point. torchao's tinygemm convention
    (`_choose_qparams_affine_tinygemm` and related functions), in float32 throughout.
    """

    extent = Extent.RANGE
    code_dtype = np.dtype(np.uint8)

    def __init__(self, bits: int, rounding: SchemeRounding = NEAREST) -> None:
        self.rounding = rounding
        self.highest = 2**bits - 1
        self.middle = np.float32(2 ** (bits - 1))
        self.smallest_extent = float(self.highest * SMALLEST_NORMAL)

    def scales(self, extents: Float32, size: int) -> GroupScales:
        low, high = extents
        scale = steps_of_range(low, high, np.float32(self.highest))
        zero_point = low + scale * self.middle
        half = np.float32(0.5)
        wide = np.float32(2) * (half * low + scale * (half * self.middle))
        return GroupScales(scale, np.where(np.isfinite(zero_point), zero_point, wide))

    def _round(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        assert scales.zero_point is not None
        low = scales.zero_point - scales.scale * self.middle
        for (x_view, view), (scale, least) in group_views(layout, (x, out), (scales.scale, low)):
            np.subtract(x_view, least, out=view)
            view /= scale
        wide = ~np.isfinite(scales.scale * np.float32(self.highest)) | ~np.isfinite(low)
        if wide.any():
            per_group = (scales.scale, scales.zero_point, wide)
            for (x_view, view), (scale, zero_point, where) in group_views(
                layout, (x, out), per_group
            ):
                steps = x_view / scale - (zero_point / scale - self.middle)
                np.copyto(view, steps, where=where)
        np.clip(out, 0, self.highest, out=out)
        self.rounding.to_integers(out, scratch)

    def _to_values(self, layout: Layout, scales: GroupScales, out: Float32) -> None:
        assert scales.zero_point is not None
        # The steps from the middle may overflow although the value does not. For such groups, half
        # the value is computed and then doubled.
        wide = ~np.isfinite(scales.scale * self.middle)
        any_wide = bool(wide.any())
        part = np.where(wide, np.float32(0.5), np.float32(1))
        per_group = (scales.scale * part, scales.zero_point * part, wide)
        for (view,), (scale, zero_point, where) in group_views(layout, (out,), per_group):
            view -= self.middle
            view *= scale
            view += zero_point
            if any_wide:
                np.multiply(view, np.float32(2), out=view, where=where)
        keep_finite(out, scales)


SMALLEST_SCALE = np.float32(1e-5)


class TernaryCoder(IntegerCoder):
    """Codes -1, 0 and 1: scale = mean magnitude of the finite elements, at least 1e-5;
    q = round(x * (1/scale)), half to even, clipped. The published function stores the float32
    reciprocal of the scale; here the value of a code is the scale itself, which can differ from
    `1 / (1/scale)` in the last bit.

    A code takes 2 bits, four in a byte. Three values need only log2(3) = 1.58 bits, which five
    codes in a byte would come close to.
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
