"""The extents of the groups of a segment, over the elements that count: those that are finite and
not left out as outliers."""

from __future__ import annotations

import numpy as np

from qtui_core.quant.coding.decomposition import Decomposition
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent, group_extents, group_means, group_ranges
from qtui_core.quant.segments.layout import Layout, Whole
from qtui_core.quant.segments.parallel import Scratch


def extents_of_inliers(
    kind: Extent, layout: Layout, decomposition: Decomposition, values: Float32, scratch: Scratch
) -> Float32:
    """Extents `[width, groups]` of a segment that begins at `scratch.start`, without elements kept
    in 16 bits and without nonfinite ones."""
    left_out = np.nan if kind is Extent.RANGE else 0.0
    inliers = decomposition.inliers(values, scratch.start, left_out, scratch)
    if kind is Extent.RANGE:
        return group_ranges(layout, inliers)
    return group_extents(kind, layout, inliers, scratch)


def finite_extents(kind: Extent, layout: Layout, values: Float32, scratch: Scratch) -> Float32:
    """Extents `[width, groups]` of the finite elements of a segment."""
    extents = group_extents(kind, layout, values, scratch)
    if not np.isfinite(extents).all():
        extents = extents_of_finite(kind, layout, values, scratch)
    return extents


def extents_of_finite(
    kind: Extent | None, layout: Layout, values: Float32, scratch: Scratch
) -> Float32:
    """The same for a segment with nonfinite elements; if `kind` is None, the largest magnitude of
    all finite elements, `[1, 1]`."""
    if kind is Extent.RANGE:
        return group_ranges(layout, np.where(np.isfinite(values), values, np.float32(np.nan)))
    mask = np.isfinite(values)
    if kind is Extent.ABS_MEAN:
        return group_means(layout, values, scratch, mask).astype(np.float32)[None]
    finite = np.where(mask, values, np.float32(0))
    if kind is None:
        return group_extents(Extent.ABSMAX, Whole(), finite, scratch)
    return group_extents(kind, layout, finite, scratch)
