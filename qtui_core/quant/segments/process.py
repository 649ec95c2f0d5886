"""How the segments of one tensor are processed: the coder of its scheme, everything that depends on
all elements and must be known before the first can be quantized, and a segment quantized and read
back by that plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.coding.codebook import LEVELS, CodebookCoder, NestedScales, quantize_scales
from qtui_core.quant.coding.coder import LARGEST, NO_SCALES, Coder, Codes, GroupScales
from qtui_core.quant.coding.decomposition import Decomposition, decompose
from qtui_core.quant.coding.floats import CastCoder, ScaledFloatCoder
from qtui_core.quant.coding.integers import (
    AsymmetricCoder,
    FloatZeroCoder,
    SignedCoder,
    SymmetricCoder,
    TernaryCoder,
)
from qtui_core.quant.coding.microscaling import MicroscalingCoder, TwoLevelCoder
from qtui_core.quant.scan.columns import ColumnScan
from qtui_core.quant.segments.elements import (
    INFINITE_WORD,
    Elements,
    Float32,
    ModelExtent,
    Segment,
    from_bfloat16,
    largest_word,
)
from qtui_core.quant.segments.grouping import (
    Extent,
    extents_of_finite,
    extents_of_inliers,
    finite_extents,
    group_extents,
    largest_magnitude,
    merge_extents,
    part_size,
    partial_sums,
    segment_multiple,
)
from qtui_core.quant.segments.layout import Columns, Layout, Whole, layout_of
from qtui_core.quant.segments.parallel import Reducer, Scratch, read
from qtui_core.quant.segments.rounding import rounding_of
from qtui_core.schemes.granularity import PerBlock, PerModel
from qtui_core.schemes.scheme import Family, Scheme

Float64 = npt.NDArray[np.float64]


@lru_cache(maxsize=256)
def make_coder(scheme: Scheme) -> Coder:
    """The coder of a scheme's format, scale rule and rounding. Coders hold tables and no
    state."""
    rounding = rounding_of(scheme)
    match scheme.family:
        case Family.CODEBOOK:
            assert isinstance(scheme.granularity, PerBlock)
            return CodebookCoder(LEVELS[scheme.format], scheme.granularity.size)
        case Family.INTEGER:
            if scheme.float_zero_point:
                return FloatZeroCoder(scheme.bits, rounding)
            if not scheme.symmetric:
                return AsymmetricCoder(scheme.bits, rounding)
            if scheme.scale_rule == "signed":
                return SignedCoder(scheme.bits)
            decomposed = scheme.outlier_threshold is not None and scheme.scale_rule == "absmax"
            return SymmetricCoder(scheme.bits, scheme.scale_rule, rounding, decomposed)
        case Family.MICROSCALING:
            assert scheme.element is not None
            return MicroscalingCoder(scheme.element, scheme.scale_rule, rounding)
        case Family.TWO_LEVEL:
            return TwoLevelCoder(rounding=rounding)
        case Family.TERNARY:
            return TernaryCoder()
    fmt = get_format(scheme.format)
    assert isinstance(fmt, FloatFormat)
    make = CastCoder if scheme.family is Family.CAST else ScaledFloatCoder
    return make(fmt, rounding, scheme.saturate)


@dataclass(frozen=True)
class Plan:
    """How segments of one tensor are processed.

    `fixed` holds the scales if they are not local to a segment: per tensor, model or column.
    `offset` is the mean absmax under double quantization. `decomposition` has the columns that are
    kept in 16 bits, None if there are none.
    """

    scheme: Scheme
    coder: Coder
    layout: Layout
    fixed: GroupScales | None = None
    offset: float | None = None
    decomposition: Decomposition | None = None

    @property
    def outlier_columns(self) -> int:
        """How many columns are kept in 16 bits."""
        return 0 if self.decomposition is None else int(self.decomposition.columns.size)

    @property
    def multiple(self) -> int:
        """The length of segments must be a multiple of this."""
        whole_groups = segment_multiple(self.layout)
        if self.coder.extent is Extent.ABS_MEAN and isinstance(self.layout, Whole | Columns):
            return part_size(self.layout)
        if self.scheme.double_quantization:
            whole_groups *= self.scheme.nested_block
        if self.scheme.family is Family.CODEBOOK:
            whole_groups = math.lcm(whole_groups, 2)
        return whole_groups


@lru_cache(4096)  # the tensors of a model have few shapes
def unread_plan(scheme: Scheme, shape: tuple[int, ...]) -> Plan:
    """The part of a plan that is known before an element is read."""
    return Plan(scheme, make_coder(scheme), layout_of(scheme.granularity, shape))


def make_plan(
    elements: Elements,
    scheme: Scheme,
    model_absmax: ModelExtent | None = None,
    *,
    threads: int = 1,
    advance: Callable[[int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Plan:
    """The plan for a tensor. Reads all elements as often as `first_passes` says.

    Raises UsageError when `model_absmax` is not a magnitude or a (min, max) pair.
    """
    plan = unread_plan(scheme, elements.shape)
    coder = plan.coder
    if isinstance(scheme.granularity, PerModel) and model_absmax is not None:
        assert coder.extent is not None
        extents = _extents_of_model(coder.extent, model_absmax)
        return replace(plan, fixed=coder.scales(extents, elements.count))

    def found_by(reducer: Reducer[Any]) -> Any:
        read(elements, [reducer], threads=threads, advance=advance, cancelled=cancelled)
        return reducer.result()

    if scheme.outlier_threshold is not None:
        absmax = found_by(ColumnScan()).absmax
        kept = decompose(scheme.granularity, scheme.outlier_threshold, absmax)
        plan = replace(plan, decomposition=kept)
    if not _shares_widely(scheme, plan.layout):
        return plan
    return found_by(PlanScan(plan))


class PlanScan(Reducer[tuple[npt.NDArray[Any], ...]]):
    """Determines what a plan needs of all elements. Its result is the plan with it: scales per
    tensor or column, from extents or means of magnitudes; the scale of the tensor by which those of
    blocks are multiplied; or the offset of double quantization, the mean of the scales without
    it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._kind = plan, plan.coder.extent
        self._of_means = self._kind is Extent.ABS_MEAN or plan.scheme.double_quantization

    @property
    def multiple(self) -> int:
        return self._plan.multiple

    def begin(self, elements: Elements) -> None:
        self._count = elements.count
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []

    def take(self, segment: Segment, scratch: Scratch) -> tuple[npt.NDArray[Any], ...]:
        """Extents, or sums and what to divide them by."""
        plan, scratch.start = self._plan, segment.start
        if self._kind is Extent.ABS_MEAN:
            return partial_sums(plan.layout, segment.float32(), scratch)
        if plan.scheme.double_quantization:
            extents = np.nan_to_num(extents_of(plan, segment.float32(), scratch))
            scale = plan.coder.scales(extents, segment.size).scale
            # In float64, so that the mean does not depend on the segments.
            return scale.sum(dtype=np.float64).reshape(1, 1), np.full((1, 1), scale.size)
        extent = _extent_of_words(plan, segment)
        if extent is not None:
            return (extent,)
        if isinstance(plan.coder, TwoLevelCoder):
            return (finite_extents(Extent.ABSMAX, Whole(), segment.float32(), scratch),)
        return (extents_of(plan, segment.float32(), scratch),)

    def add(self, part: tuple[npt.NDArray[Any], ...]) -> None:
        if self._parts and not self._of_means:
            assert self._kind is not None
            part = (merge_extents(self._kind, self._parts.pop()[0], part[0]),)
        self._parts.append(part)

    def result(self) -> Plan:
        plan, coder, extents = self._plan, self._plan.coder, None
        if self._parts and self._of_means:
            sums, counts = (np.concatenate(p).sum(axis=0) for p in zip(*self._parts, strict=True))
            extents = (sums / np.maximum(counts, 1)).astype(np.float32)[None]
        elif self._parts:
            extents = np.nan_to_num(self._parts[0][0])
        if plan.scheme.double_quantization:
            return replace(plan, offset=0.0 if extents is None else float(extents[0, 0]))
        if isinstance(coder, TwoLevelCoder):
            coder = coder.for_tensor(0.0 if extents is None else float(extents[0, 0]))
            plan = replace(plan, coder=coder)
            if not isinstance(plan.layout, Whole):
                return plan
        return plan if extents is None else replace(plan, fixed=coder.scales(extents, self._count))


def extents_of(plan: Plan, values: Float32, scratch: Scratch) -> Float32:
    """Extents `[width, groups]` of the groups of a segment that begins at `scratch.start`, over the
    elements that count: the finite ones that are not left out as outliers."""
    kind, kept = plan.coder.extent, plan.decomposition
    assert kind is not None
    if kept is not None:
        return extents_of_inliers(kind, plan.layout, kept, values, scratch)
    return finite_extents(kind, plan.layout, values, scratch)


def _extent_of_words(plan: Plan, segment: Segment) -> Float32 | None:
    """The extent `[1, 1]` of a bfloat16 segment if it can be read from the words; None if some
    elements do not count."""
    if segment.convert is not from_bfloat16 or plan.decomposition is not None:
        return None
    if plan.coder.extent is not Extent.ABSMAX or not isinstance(plan.layout, Whole):
        return None
    largest = largest_word(segment.raw)
    if largest >= INFINITE_WORD:
        return None
    return from_bfloat16(np.array([[largest]], np.uint16))


def first_passes(
    scheme: Scheme, shape: tuple[int, ...], model_absmax: ModelExtent | None = None
) -> int:
    """How often all elements must be read before the first can be quantized: once for the columns
    that are kept in 16 bits, and once for scales that depend on all elements."""
    if isinstance(scheme.granularity, PerModel) and model_absmax is not None:
        return 0
    columns = scheme.outlier_threshold is not None
    return columns + _shares_widely(scheme, layout_of(scheme.granularity, shape))


def _shares_widely(scheme: Scheme, layout: Layout) -> bool:
    """Whether scales depend on elements that may be far apart."""
    if scheme.family is Family.CAST:
        return False
    if scheme.family is Family.TWO_LEVEL:
        return True
    return scheme.double_quantization or isinstance(layout, Whole | Columns)


def _extents_of_model(kind: Extent, extent: ModelExtent) -> Float32:
    low, high = extent if isinstance(extent, tuple) else (-extent, extent)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise UsageError(
            f"The extent of a model is its largest magnitude or its (min, max), finite "
            f"numbers; got {extent!r}."
        )
    match kind:
        case Extent.ABSMAX:
            return np.array([[max(abs(low), abs(high))]], np.float32)
        case Extent.MIN_MAX:
            return np.array([[min(low, 0.0), max(high, 0.0)]], np.float32).T.copy()
        case Extent.RANGE:
            return np.array([[low], [high]], np.float32)
        case Extent.SIGNED:
            return np.array([[low if abs(low) > abs(high) else high]], np.float32)
        case Extent.ABS_MEAN:
            raise AssertionError("a scheme with a mean has no scale of the model")


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
