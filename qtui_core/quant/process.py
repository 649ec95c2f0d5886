"""A scheme set up for one tensor: the coder, the layout and the scales known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qtui_core.errors import UsageError
from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.affine import AsymmetricCoder, FloatZeroCoder, SignedCoder, SymmetricCoder
from qtui_core.quant.codebook import LEVELS, CodebookCoder
from qtui_core.quant.coder import LARGEST, NO_SCALES, Coder, Codes, GroupScales
from qtui_core.quant.columns import column_statistics
from qtui_core.quant.decomposition import Decomposition, decompose
from qtui_core.quant.double_quant import NestedScales, quantize_scales
from qtui_core.quant.elements import Elements, Float32, ModelExtent, Segment
from qtui_core.quant.floats import CastCoder, ScaledFloatCoder
from qtui_core.quant.granularity import PerBlock, PerModel
from qtui_core.quant.grouping import (
    Extent,
    group_extents,
    group_means,
    group_ranges,
    largest_magnitude,
    merge_extents,
    part_size,
    partial_sums,
    segment_multiple,
)
from qtui_core.quant.layout import Columns, Layout, Whole, layout_of
from qtui_core.quant.microscaling import MicroscalingCoder
from qtui_core.quant.parallel import Scratch, map_segments, progress_of
from qtui_core.quant.rounding import rounding_of
from qtui_core.quant.scheme import Family, Scheme
from qtui_core.quant.ternary import TernaryCoder
from qtui_core.quant.two_level import TwoLevelCoder

Result = TypeVar("Result")


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

    `fixed` holds the scales where they are not local to a segment: per tensor, model or
    column. `offset` is the mean absmax under double quantization. `decomposition` has the
    columns that are kept in 16 bits, None where none are.
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
        """Segments must be multiples of this long."""
        whole_groups = segment_multiple(self.layout)
        if self.coder.extent is Extent.ABS_MEAN and isinstance(self.layout, Whole | Columns):
            return part_size(self.layout)
        if self.scheme.double_quantization:
            whole_groups *= self.scheme.nested_block
        if self.scheme.family is Family.CODEBOOK:
            whole_groups = math.lcm(whole_groups, 2)
        return whole_groups


@dataclass(frozen=True)
class Prepared:
    """The elements of a segment made ready: `x` is finite, `scales` are those of its groups.
    Elements kept in 16 bits are 0 in `x`.

    `nonfinite` is a mask of NaN and infinities, None where there are none; `values` are the
    elements as they came. `magnitude` is, for a cast, that of the finite elements and 0 for
    the others, in scratch memory.
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
        """The scales as a reader of the stored tensor has them."""
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
    # What the extents were found from is still there.
    magnitude = scratch.take("magnitude", values.size, np.float32) if kind is None else None
    nonfinite = None
    x = values
    if not np.isfinite(extents).all():
        nonfinite = ~np.isfinite(values)
        extents = _extents_of_finite(kind if local else None, plan.layout, values, scratch)
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
    """As `prepare`, where columns are kept in 16 bits."""
    finite = np.isfinite(values)
    nonfinite = None if finite.all() else ~finite
    absmax = float(np.abs(values).max(initial=0, where=finite))
    x = np.nan_to_num(values, nan=0.0, posinf=LARGEST, neginf=-LARGEST)
    decomposition.fill(x, scratch.start, 0.0)
    scales = plan.fixed
    if scales is None:
        extents = _extents_of_inliers(plan, decomposition, values, scratch)
        scales = plan.coder.scales(np.nan_to_num(extents), values.size)
    return Prepared(values, x, nonfinite, scales, None, absmax)


def _extents_of_inliers(
    plan: Plan, decomposition: Decomposition, values: Float32, scratch: Scratch
) -> Float32:
    kind = plan.coder.extent
    assert kind is not None
    left_out = np.nan if kind is Extent.RANGE else 0.0
    inliers = decomposition.inliers(values, scratch.start, left_out)
    if kind is Extent.RANGE:
        return group_ranges(plan.layout, inliers)
    return group_extents(kind, plan.layout, inliers, scratch)


def _extents_of_finite(
    kind: Extent | None, layout: Layout, values: Float32, scratch: Scratch
) -> Float32:
    if kind is Extent.RANGE:
        return group_ranges(layout, np.where(np.isfinite(values), values, np.float32(np.nan)))
    mask = np.isfinite(values)
    if kind is Extent.ABS_MEAN:
        return group_means(layout, values, scratch, mask).astype(np.float32)[None]
    finite = np.where(mask, values, np.float32(0))
    if kind is None:
        return group_extents(Extent.ABSMAX, Whole(), finite, scratch)
    return group_extents(kind, layout, finite, scratch)


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
    coder = make_coder(scheme)
    layout = layout_of(scheme.granularity, elements.shape)
    plan = Plan(scheme, coder, layout)
    if isinstance(scheme.granularity, PerModel) and model_absmax is not None:
        assert coder.extent is not None
        extents = _extents_of_model(coder.extent, model_absmax)
        return replace(plan, fixed=coder.scales(extents, elements.count))
    if scheme.outlier_threshold is not None:
        absmax = column_statistics(
            elements,
            progress=progress_of(advance, elements.count),
            cancelled=cancelled,
            threads=threads,
        ).absmax
        kept = decompose(scheme.granularity, scheme.outlier_threshold, absmax)
        plan = replace(plan, decomposition=kept)
    if not _shares_widely(scheme, layout):
        return plan
    return with_shared_scales(plan, elements, threads=threads, advance=advance, cancelled=cancelled)


def with_shared_scales(
    plan: Plan,
    elements: Elements,
    *,
    threads: int = 1,
    advance: Callable[[int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Plan:
    """The plan with what all elements decide: scales per tensor or column, the scale of the
    tensor that scales of blocks are multiplied by, or the offset of double quantization. Reads
    all elements once."""
    scheme, coder, layout = plan.scheme, plan.coder, plan.layout
    kind = coder.extent
    assert kind is not None

    def over_segments(work: Callable[[Float32, Scratch], Result]) -> Iterator[Result]:
        def work_on(segment: Segment, scratch: Scratch) -> Result:
            # Threads do not inherit the error state of their caller.
            scratch.start = segment.start
            with np.errstate(all="ignore"):
                return work(segment.float32(), scratch)

        return map_segments(
            work_on,
            elements.segments(plan.multiple),
            threads=threads,
            advance=advance,
            cancelled=cancelled,
        )

    if kind is Extent.ABS_MEAN:
        parts = list(over_segments(partial(partial_sums, layout)))
        if not parts:
            return plan
        sums, counts = (np.concatenate(part).sum(axis=0) for part in zip(*parts, strict=True))
        means = (sums / np.maximum(counts, 1)).astype(np.float32)
        return replace(plan, fixed=coder.scales(means[None], elements.count))
    if isinstance(coder, TwoLevelCoder):
        extremes = over_segments(partial(_finite_extents, kind, Whole()))
        largest = max(map(largest_magnitude, extremes), default=0.0)
        plan = replace(plan, coder=coder.for_tensor(largest))
        if not isinstance(layout, Whole):
            return plan
        lone = np.array([[largest]], np.float32)
        return replace(plan, fixed=plan.coder.scales(lone, elements.count))
    if scheme.double_quantization:
        # In float64, so that the mean does not depend on how the tensor was cut.
        total = count = 0.0
        for scales in over_segments(partial(_scales_of, plan)):
            total += float(scales.sum(dtype=np.float64))
            count += scales.size
        return replace(plan, offset=float(np.float32(total / count)) if count else 0.0)
    merged: Float32 | None = None
    for extents in over_segments(partial(extents_of, plan)):
        merged = merge_extents(kind, merged, extents)
    if merged is None:
        return plan
    return replace(plan, fixed=coder.scales(np.nan_to_num(merged), elements.count))


def _scales_of(plan: Plan, values: Float32, scratch: Scratch) -> Float32:
    """The scales of a segment as they are without double quantization."""
    return plan.coder.scales(np.nan_to_num(extents_of(plan, values, scratch)), values.size).scale


def extents_of(plan: Plan, values: Float32, scratch: Scratch) -> Float32:
    """Extents `[width, groups]` of the groups of a segment that begins at `scratch.start`, of the
    elements that count: the finite ones that are not left out as outliers."""
    if plan.decomposition is not None:
        return _extents_of_inliers(plan, plan.decomposition, values, scratch)
    assert plan.coder.extent is not None
    return _finite_extents(plan.coder.extent, plan.layout, values, scratch)


def _finite_extents(kind: Extent, layout: Layout, values: Float32, scratch: Scratch) -> Float32:
    extents = group_extents(kind, layout, values, scratch)
    if not np.isfinite(extents).all():
        extents = _extents_of_finite(kind, layout, values, scratch)
    return extents


def first_passes(
    scheme: Scheme, shape: tuple[int, ...], model_absmax: ModelExtent | None = None
) -> int:
    """How often all elements must be read before the first can be quantized: once for the
    columns that are kept in 16 bits, and once for scales that all elements decide."""
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
