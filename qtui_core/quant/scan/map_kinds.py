"""The quantities that a map of a tensor can show of each element."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from qtui_core.errors import UsageError
from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.coding.codebook import unpack_nibbles
from qtui_core.quant.segments.elements import Float32, Segment
from qtui_core.quant.segments.grouping import group_views
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.process import Plan, encode, prepare, round_trip
from qtui_core.schemes.scheme import Family, Scheme


class MapKind(StrEnum):
    """The quantity that a map shows. It is NaN for an element that has no such quantity.

    ERROR: |dequantized x - x|; 0 for an element that is not finite.
    SIGNED: dequantized x - x, positive where the scheme made x larger.
    VALUE: x.
    SCALE: the scale of the element's group, as it is read back from the stored tensor; NaN in
        columns that are kept in 16 bits.
    CODE: the integer code. In a format with a sign bit it is the other bits, with that sign. NaN in
        columns that are kept in 16 bits.
    DIFFERENCE: |error| under the first scheme minus |error| under the second.
    """

    ERROR = "error"
    SIGNED = "signed"
    VALUE = "value"
    SCALE = "scale"
    CODE = "code"
    DIFFERENCE = "difference"

    @property
    def schemes(self) -> int:
        """How many schemes the quantity depends on."""
        return {MapKind.VALUE: 0, MapKind.DIFFERENCE: 2}.get(self, 1)


def check_kind(kind: MapKind, schemes: Sequence[Scheme]) -> None:
    """Raises UsageError if there is no map of this kind under these schemes."""
    if len(schemes) != kind.schemes:
        raise UsageError(f"A map of the {kind} takes {kind.schemes} schemes; got {len(schemes)}.")
    if kind is MapKind.SCALE and schemes[0].family is Family.CAST:
        raise UsageError(
            f"{schemes[0].format} is a cast without a scale, so there is no map of scales."
        )


def quantity(
    kind: MapKind,
    plans: Sequence[Plan],
    segments: Sequence[Segment],
    first: int,
    last: int,
    scratch: Scratch,
) -> Float32:
    """The quantity of elements [first, last) of the flattened tensor, float32 `[last - first]`. The
    array is scratch memory or that of the tensor, so it must not be written to.

    There is one segment for each plan. It contains these elements and is cut as the plan requires.
    VALUE has one segment and no plan.
    """

    def cut(values: Float32, segment: Segment) -> Float32:
        return values[first - segment.start : last - segment.start]

    segment = segments[0]
    match kind:
        case MapKind.VALUE:
            return cut(segment.float32(), segment)
        case MapKind.SCALE:
            return cut(_scales(plans[0], segment, scratch), segment)
        case MapKind.CODE:
            return cut(_codes(plans[0], segment, scratch), segment)
    error = cut(_errors(plans[0], segment, scratch), segment)
    if kind is MapKind.SIGNED:
        return error
    np.abs(error, out=error)
    if kind is MapKind.ERROR:
        return error
    difference: Float32 = scratch.take("difference", error.size, np.float32)
    difference[...] = error
    other = cut(_errors(plans[1], segments[1], scratch), segments[1])
    return np.subtract(difference, np.abs(other, out=other), out=difference)


def _errors(plan: Plan, segment: Segment, scratch: Scratch) -> Float32:
    prepared = prepare(plan, segment, scratch)
    error = round_trip(plan, prepared, scratch)
    np.subtract(error, prepared.values, out=error)
    if prepared.nonfinite is not None:
        error[prepared.nonfinite] = 0
    if not plan.scheme.saturate:
        error[~np.isfinite(error)] = 0  # overflowed: counted elsewhere
    return error


def _scales(plan: Plan, segment: Segment, scratch: Scratch) -> Float32:
    prepared = prepare(plan, segment, scratch)
    out: Float32 = scratch.take("scale", segment.size, np.float32)
    for (view,), (scale,) in group_views(plan.layout, (out,), (prepared.decoding_scales.scale,)):
        view[...] = scale
    if plan.decomposition is not None:
        plan.decomposition.fill(out, segment.start, np.nan)
    return out


def _codes(plan: Plan, segment: Segment, scratch: Scratch) -> Float32:
    coder, scheme = plan.coder, plan.scheme
    prepared = prepare(plan, segment, scratch)
    codes = scratch.take("map codes", coder.code_count(segment.size), coder.code_dtype)
    encode(plan, prepared, codes, scratch)
    if scheme.family is Family.CODEBOOK:
        codes = unpack_nibbles(codes, segment.size)
    out = codes.astype(np.float32)
    element = None if scheme.element is None else get_format(scheme.element)
    if isinstance(element, FloatFormat):
        magnitude = (codes & codes.dtype.type(element.sign_bit - 1)).astype(np.float32)
        out = np.where(codes & codes.dtype.type(element.sign_bit), -magnitude, magnitude)
    if plan.decomposition is not None:
        plan.decomposition.fill(out, segment.start, np.nan)
    return out
