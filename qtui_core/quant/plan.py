"""How the segments of one tensor are processed: the coder of its scheme, everything that depends on
all elements and must be known before the first can be quantized, a segment quantized and read back
by that plan, and one scan of a tensor for everything that is asked about it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Job
from qtui_core.quant.codebook import NestedScales, pack_nibbles, quantize_scales
from qtui_core.quant.coders import (
    LARGEST,
    NO_SCALES,
    Coder,
    Codes,
    GroupScales,
    TwoLevelCoder,
    make_coder,
)
from qtui_core.quant.columns import ColumnScan, Decomposition, decompose
from qtui_core.quant.elements import Elements, ModelExtent, Segment, TensorLike, elements_of
from qtui_core.quant.layout import (
    Array,
    Bool,
    Columns,
    Extent,
    Float32,
    Layout,
    Whole,
    cached_views,
    group_extents,
    layout_of,
    merge_extents,
    part_size,
    partial_sums,
    segment_multiple,
)
from qtui_core.quant.reading import Part, Reducer, read
from qtui_core.quant.rounding import random_words
from qtui_core.schemes.granularity import PerModel
from qtui_core.schemes.scheme import Family, Scheme


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
    def packed(self) -> bool:
        """Whether two codes share a byte."""
        return self.scheme.family is Family.CODEBOOK

    @property
    def multiple(self) -> int:
        """The length of segments must be a multiple of this."""
        whole_groups = segment_multiple(self.layout)
        if self.coder.extent is Extent.ABS_MEAN and isinstance(self.layout, Whole | Columns):
            return part_size(self.layout)
        if self.scheme.double_quantization:
            whole_groups *= self.scheme.nested_block
        return math.lcm(whole_groups, 2) if self.packed else whole_groups

    def code_count(self, elements: int) -> int:
        """The length of the array of codes for so many elements."""
        return (elements + 1) // 2 if self.packed else elements

    def extents(self, values: Float32, start: int, nonfinite: Bool | None) -> Float32:
        """Extents `[width, groups]` of the groups of a segment that begins at `start`, over the
        elements that count: the finite ones that are not left out as outliers."""
        assert self.coder.extent is not None
        counted = None if nonfinite is None else ~nonfinite
        if self.decomposition is not None:
            counted = self.decomposition.counted(values, start)
        extents = group_extents(self.coder.extent, self.layout, values, counted)
        return extents if counted is None else np.nan_to_num(extents)


@lru_cache(4096)  # the tensors of a model have few shapes
def unread_plan(scheme: Scheme, shape: tuple[int, ...]) -> Plan:
    """The part of a plan that is known before an element is read."""
    return Plan(scheme, make_coder(scheme), layout_of(scheme.granularity, shape))


@np.errstate(all="ignore")
def make_plan(
    elements: Elements,
    scheme: Scheme,
    model_absmax: ModelExtent | None = None,
    job: Job = IDLE,
) -> Plan:
    """The plan for a tensor. Reads all elements as often as `first_passes` says.

    Raises UsageError when `model_absmax` is not a magnitude or a (min, max) pair.
    """
    plan = unread_plan(scheme, elements.shape)
    if isinstance(scheme.granularity, PerModel) and model_absmax is not None:
        assert plan.coder.extent is not None
        extents = _extents_of_model(plan.coder.extent, model_absmax)
        return replace(plan, fixed=plan.coder.scales(extents, elements.count))

    jobs = job.parts([1] * first_passes(scheme, elements.shape))

    def result_of(reducer: Reducer[Any]) -> Any:
        read(elements, [reducer], next(jobs))
        return reducer.result()

    if scheme.outlier_threshold is not None:
        absmax = result_of(ColumnScan()).absmax
        kept = decompose(scheme.granularity, scheme.outlier_threshold, absmax)
        plan = replace(plan, decomposition=kept)
    return result_of(PlanScan(plan)) if _shares_widely(scheme, plan.layout) else plan


class PlanScan(Reducer[tuple[Array, ...]]):
    """Determines what a plan needs of all elements. Its result is the plan with it: scales per
    tensor or column, from extents or means of magnitudes; the scale of the tensor by which those of
    blocks are multiplied; or the offset of double quantization, the mean of the scales without
    it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._of_means = plan.coder.extent is Extent.ABS_MEAN or plan.scheme.double_quantization

    @property
    def multiple(self) -> int:
        return self._plan.multiple

    def begin(self, elements: Elements) -> None:
        self._count = elements.count
        self._parts: list[tuple[Array, ...]] = []

    def take(self, segment: Segment) -> tuple[Array, ...]:
        """Extents, or sums and what to divide them by."""
        plan, values = self._plan, segment.values
        if plan.coder.extent is Extent.ABS_MEAN:
            return partial_sums(plan.layout, values)
        nonfinite = nonfinite_of(values, largest_magnitude(values))
        if plan.scheme.double_quantization:
            scale = plan.coder.scales(plan.extents(values, segment.start, nonfinite), segment.size)
            # In float64, so that the mean does not depend on the segments.
            total = scale.scale.sum(dtype=np.float64)
            return total.reshape(1, 1), np.full((1, 1), scale.scale.size)
        if isinstance(plan.coder, TwoLevelCoder):
            plan = replace(plan, layout=Whole())
        return (plan.extents(values, segment.start, nonfinite),)

    def add(self, part: tuple[Array, ...]) -> None:
        if self._parts and not self._of_means:
            assert self._plan.coder.extent is not None
            part = (merge_extents(self._plan.coder.extent, self._parts.pop()[0], part[0]),)
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
            coder = TwoLevelCoder(0.0 if extents is None else float(extents[0, 0]))
            plan = replace(plan, coder=coder)
            if not isinstance(plan.layout, Whole):
                return plan
        return plan if extents is None else replace(plan, fixed=coder.scales(extents, self._count))


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
    if scheme.family in (Family.CAST, Family.TWO_LEVEL):
        return scheme.family is Family.TWO_LEVEL
    return scheme.double_quantization or isinstance(layout, Whole | Columns)


def _extents_of_model(kind: Extent, extent: ModelExtent) -> Float32:
    low, high = extent if isinstance(extent, tuple) else (-extent, extent)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise UsageError(
            f"The extent of a model is its largest magnitude or its (min, max), finite "
            f"numbers; got {extent!r}."
        )
    # Of two equal magnitudes the first counts: the positive one.
    return group_extents(kind, Whole(), np.array([high, low], np.float32))


def largest_magnitude(values: Float32) -> np.float32:
    """The largest magnitude, NaN if there is a NaN, and 0 for no values."""
    if not values.size:
        return np.float32(0)
    largest: np.float32 = np.maximum(values.max(), -values.min())
    return largest


def nonfinite_of(values: Float32, largest: np.float32) -> Bool | None:
    """Where elements are NaN or infinite, of a segment with this largest magnitude; None if there
    are none."""
    return None if np.isfinite(largest) else ~np.isfinite(values)


@dataclass(frozen=True)
class Prepared:
    """The prepared elements of a segment that starts at `start`: `x` is finite, `scales` are those
    of its groups. Elements kept in 16 bits are 0 in `x`.

    `values` are the elements as they are, `nonfinite` is a mask of NaN and infinities, None if
    there are none, and `absmax` the largest finite magnitude.
    """

    start: int
    values: Float32
    x: Float32
    nonfinite: Bool | None
    scales: GroupScales
    nested: NestedScales | None
    absmax: float

    @property
    def decoding_scales(self) -> GroupScales:
        """The scales as a reader of the stored tensor would decode them."""
        if self.nested is None:
            return self.scales
        return GroupScales(self.nested.dequantize())


def prepare(plan: Plan, segment: Segment) -> Prepared:
    """Scales and finite elements of a segment."""
    x = values = segment.values
    largest = largest_magnitude(values)
    nonfinite = nonfinite_of(values, largest)
    if nonfinite is not None:
        x = np.nan_to_num(values, nan=0.0, posinf=LARGEST, neginf=-LARGEST)
        largest = largest_magnitude(np.where(nonfinite, np.float32(0), values))
    if plan.decomposition is not None:
        x = x.copy() if x is values else x
        plan.decomposition.fill(x, segment.start, 0.0)
    scales = plan.fixed or NO_SCALES
    if plan.fixed is None and plan.coder.extent is not None:
        extents = plan.extents(values, segment.start, nonfinite)
        scales = plan.coder.scales(extents, values.size)
    nested = None
    if plan.offset is not None:
        nested = quantize_scales(scales.scale, plan.offset, plan.scheme.nested_block)
    return Prepared(segment.start, values, x, nonfinite, scales, nested, float(largest))


def _noise(plan: Plan, prepared: Prepared) -> npt.NDArray[np.uint32] | None:
    if plan.scheme.rounding == "nearest":
        return None
    return random_words(plan.scheme.seed, prepared.start, prepared.x.size)


def encode(plan: Plan, prepared: Prepared, codes: Codes) -> None:
    """Writes the codes of a segment to `codes`. NaN takes the NaN code of a float format that has
    one and the code of zero elsewhere; an infinity takes the infinity of the format if it has one,
    else the outermost level of its sign."""
    coder, size = plan.coder, prepared.x.size
    single = codes
    if plan.packed:
        single = np.empty(size + size % 2, np.uint8)
        single[size:] = coder.zero_code
    whole = prepared.x, single[:size], _noise(plan, prepared)
    for (x, out, noise), arrays in cached_views(plan.layout, whole, prepared.scales.arrays):
        out[...] = coder.encode(x, _scales(arrays), noise)
    if plan.packed:
        pack_nibbles(single, codes)
    if prepared.nonfinite is None:
        return
    if coder.nan_code is not None:
        codes[np.isnan(prepared.values)] = coder.nan_code
    if coder.infinity_codes is not None:
        positive, negative = coder.infinity_codes
        codes[np.isposinf(prepared.values)] = positive
        codes[np.isneginf(prepared.values)] = negative


def round_trip(plan: Plan, prepared: Prepared, out: Float32 | None = None) -> Float32:
    """Dequantized values of the finite elements of a segment, in a new array or in `out`."""
    out = np.empty(prepared.x.size, np.float32) if out is None else out
    reading = prepared.decoding_scales
    whole = prepared.x, out, _noise(plan, prepared)
    both = *prepared.scales.arrays, *reading.arrays
    for (x, target, noise), arrays in cached_views(plan.layout, whole, both):
        rounded = plan.coder.round(x, _scales(arrays[:4]), noise)
        plan.coder.multiply(rounded, _scales(arrays[4:]))
        target[...] = rounded
    _keep_finite(plan, reading, out)
    if plan.decomposition is not None:
        plan.decomposition.keep(out, prepared.values, prepared.start)
    return out


def decode(plan: Plan, codes: Codes, scales: GroupScales, out: Float32) -> None:
    """Writes the values of the codes of a segment to `out`."""
    plan.coder.numbers(codes, out)
    for (numbers,), arrays in cached_views(plan.layout, (out,), scales.arrays):
        plan.coder.multiply(numbers, _scales(arrays))
    _keep_finite(plan, scales, out)


def _scales(arrays: Sequence[Any]) -> GroupScales:
    return NO_SCALES if arrays[0] is None else GroupScales(*arrays)


def _keep_finite(plan: Plan, scales: GroupScales, out: Float32) -> None:
    """Replaces products that overflowed by the largest float32. Costs a pass over `out` only if a
    scale is so large that a level times the scale may overflow."""
    if scales.scale.size and float(np.abs(scales.scale).max()) > LARGEST / 2**17:
        np.clip(out, -LARGEST, LARGEST, out=out)


class SchemeReducer(Reducer[Part]):
    """A reducer that depends on schemes. `plans`, one for each scheme, and `model_absmax` are set
    before `begin` is called."""

    plans: tuple[Plan, ...]
    model_absmax: ModelExtent | None = None

    def __init__(self, *schemes: Scheme) -> None:
        self.schemes = schemes

    @property
    def scheme(self) -> Scheme:
        """The first scheme, usually the only one."""
        return self.schemes[0]

    @property
    def plan(self) -> Plan:
        """The plan of the first scheme."""
        return self.plans[0]

    @property
    def multiple(self) -> int:
        return self.plan.multiple


def scan(
    x: TensorLike,
    reducers: Sequence[Reducer[Any]],
    *,
    model_absmax: ModelExtent | None = None,
    plans: Mapping[Scheme, Plan] | None = None,
    job: Job = IDLE,
) -> None:
    """Reads a tensor for all reducers; after that their results are valid. Reducers with the same
    segments share a reading, which for most schemes and shapes is all of them. Each result is the
    same, bit for bit, as if it were computed alone.

    Args:
        x: what `quantize` takes. The rows of a reader are requested in order, on this thread.
        reducers: what to compute.
        model_absmax: as for `quantize`.
        plans: plans of schemes for this tensor, as `make_plan` returns them. A missing plan is made
            first, which may take a reading or two (`first_passes`).
        job: see `Job`.

    Raises:
        Cancelled: the job was cancelled.
        UsageError: `x` is not a tensor of real numbers.
    """
    elements = elements_of(x)
    known = dict(plans or {})
    about = [reducer for reducer in reducers if isinstance(reducer, SchemeReducer)]
    missing = {
        scheme: first_passes(scheme, elements.shape, model_absmax)
        for reducer in about
        for scheme in reducer.schemes
        if scheme not in known
    }
    for reducer in about:
        reducer.plans = tuple(
            known.get(scheme) or unread_plan(scheme, elements.shape) for scheme in reducer.schemes
        )
    # Other segments would change the last bits of sums.
    readings: dict[Hashable, list[Reducer[Any]]] = {}
    for one in reducers:
        readings.setdefault(one.cut(elements), []).append(one)
    reads = [together[0].reads(elements) for together in readings.values()]
    jobs = job.parts([*(passes * elements.count for passes in missing.values()), *reads])
    for scheme in missing:
        known[scheme] = make_plan(elements, scheme, model_absmax, next(jobs))
    for reducer in about:
        reducer.plans = tuple(known[scheme] for scheme in reducer.schemes)
        reducer.model_absmax = model_absmax
    for together in readings.values():
        read(elements, together, next(jobs))
