"""A segment quantized and read back, by the plan of its tensor."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.coding.coder import LARGEST, NO_SCALES, Codes, GroupScales
from qtui_core.quant.coding.decomposition import Decomposition
from qtui_core.quant.coding.double_quant import NestedScales, quantize_scales
from qtui_core.quant.segments.elements import Float32, Segment
from qtui_core.quant.segments.extents import extents_of_finite, extents_of_inliers
from qtui_core.quant.segments.grouping import Extent, group_extents, largest_magnitude
from qtui_core.quant.segments.layout import Whole
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.tensor_plan import (
    Plan,
)


@dataclass(frozen=True)
class Prepared:
    """The prepared elements of a segment: `x` is finite, `scales` are those of its groups. Elements
    kept in 16 bits are 0 in `x`.

    `nonfinite` is a mask of NaN and infinities, None if there are none; `values` are the original
    elements. `magnitude` is, for a cast, that of the finite elements and 0 for the others, in
    scratch memory.
    """

    values: Float32
    x: Float32
    nonfinite: npt.NDArray[np.bool_] | None
    scales: GroupScales
    nested: NestedScales | None
    absmax: float
    magnitude: Float32 | None = None

    @property
    def decoding_scales(self) -> GroupScales:
        """The scales as a reader of the stored tensor would decode them."""
        if self.nested is None:
            return self.scales
        return GroupScales(self.nested.dequantize())


def prepare(plan: Plan, segment: Segment, scratch: Scratch) -> Prepared:
    """Scales and finite elements of a segment."""
    scratch.start = segment.start
    values = segment.float32()
    if plan.decomposition is not None:
        return _prepare_inliers(plan, plan.decomposition, values, scratch)
    kind = plan.coder.extent
    local = plan.fixed is None and kind is not None
    if local:
        assert kind is not None
        extents = group_extents(kind, plan.layout, values, scratch)
    else:
        extents = group_extents(Extent.ABSMAX, Whole(), values, scratch)
    # The magnitudes from which the extents were computed are still there.
    magnitude = scratch.take("magnitude", values.size, np.float32) if kind is None else None
    nonfinite = None
    x = values
    if not np.isfinite(extents).all():
        nonfinite = ~np.isfinite(values)
        extents = extents_of_finite(kind if local else None, plan.layout, values, scratch)
        extents = np.nan_to_num(extents)
        x = np.nan_to_num(values, nan=0.0, posinf=LARGEST, neginf=-LARGEST)
    if local and kind is Extent.ABS_MEAN:
        absmax = float(np.abs(x[np.isfinite(values)]).max(initial=0))
    else:
        absmax = largest_magnitude(extents)
    scales = plan.fixed or NO_SCALES
    if local:
        scales = plan.coder.scales(extents, values.size)
    nested = None
    if plan.offset is not None:
        nested = quantize_scales(scales.scale, plan.offset, plan.scheme.nested_block)
    return Prepared(values, x, nonfinite, scales, nested, absmax, magnitude)


def _prepare_inliers(
    plan: Plan, decomposition: Decomposition, values: Float32, scratch: Scratch
) -> Prepared:
    """Like `prepare`, if columns are kept in 16 bits."""
    magnitude = np.abs(values, out=scratch.take("magnitude", values.size, np.float32))
    # Magnitudes have the order of their words, and integers are searched faster.
    words = magnitude.view(np.int32)
    absmax = float(magnitude[words.argmax()]) if words.size else 0.0
    nonfinite = None
    x = scratch.take("quantized", values.size, np.float32)
    if math.isfinite(absmax):
        np.copyto(x, values)
    else:
        nonfinite = ~np.isfinite(values)
        absmax = float(magnitude.max(initial=0, where=~nonfinite))
        x[...] = np.nan_to_num(values, nan=0.0, posinf=LARGEST, neginf=-LARGEST)
    decomposition.fill(x, scratch.start, 0.0)
    scales = plan.fixed
    if scales is None:
        kind = plan.coder.extent
        assert kind is not None
        extents = extents_of_inliers(kind, plan.layout, decomposition, values, scratch)
        scales = plan.coder.scales(np.nan_to_num(extents), values.size)
    return Prepared(values, x, nonfinite, scales, None, absmax)


def encode(plan: Plan, prepared: Prepared, codes: Codes, scratch: Scratch) -> None:
    """Codes of a prepared segment. NaN takes the NaN code of a float format that has one and
    the code of zero elsewhere; an infinity takes the infinity of the format if it has one,
    else the outermost level of its sign."""
    coder = plan.coder
    coder.encode(plan.layout, prepared.x, prepared.scales, codes, scratch)
    if prepared.nonfinite is None:
        return
    if coder.nan_code is not None:
        codes[np.isnan(prepared.values)] = coder.nan_code
    if coder.infinity_codes is not None:
        positive, negative = coder.infinity_codes
        codes[np.isposinf(prepared.values)] = positive
        codes[np.isneginf(prepared.values)] = negative


def round_trip(plan: Plan, prepared: Prepared, scratch: Scratch) -> Float32:
    """Dequantized values of the finite elements of a segment, in scratch memory."""
    coder = plan.coder
    out: Float32 = scratch.take("out", prepared.x.size, np.float32)
    if prepared.nested is None:
        coder.round_trip(plan.layout, prepared.x, prepared.scales, out, scratch)
        if plan.decomposition is not None:
            plan.decomposition.keep(out, prepared.values, scratch.start)
        return out
    codes = scratch.take("codes", coder.code_count(out.size), coder.code_dtype)
    coder.encode(plan.layout, prepared.x, prepared.scales, codes, scratch)
    coder.decode(plan.layout, codes, prepared.decoding_scales, out, scratch)
    return out
