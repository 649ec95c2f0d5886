"""Groups of a segment as array views, and the extent of each group, over all elements or over those
that count: finite and not left out as outliers."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.quant.coding.decomposition import Decomposition
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.layout import Columns, Layout, RaggedRows, Runs, Tiles, Whole
from qtui_core.quant.segments.parallel import Scratch

Array = npt.NDArray[Any]


class Extent(Enum):
    """What a scale is computed from."""

    ABSMAX = "absmax"
    """The largest magnitude."""
    MIN_MAX = "min-max"
    """The smallest and the largest value, zero included."""
    RANGE = "range"
    """The smallest and the largest value, whether zero is between them or not."""
    SIGNED = "signed"
    """The first element of the largest magnitude, with its sign."""
    ABS_MEAN = "mean magnitude"
    """The mean magnitude: a float64 sum over the count, rounded once."""

    @property
    def width(self) -> int:
        """How many numbers an extent has per group."""
        return 2 if self in (Extent.MIN_MAX, Extent.RANGE) else 1


#: Magnitudes of groups larger than a segment are summed in parts of about this many elements, at
#: fixed places, so that the sum does not depend on the segments.
PART = 1 << 16


def segment_multiple(layout: Layout) -> int:
    """Segments cut at multiples of this contain whole groups (if groups are local)."""
    match layout:
        case Runs(size):
            return size
        case RaggedRows(columns, _) | Columns(columns):
            return max(1, columns)
        case Tiles(columns, height, _):
            return columns * height
        case Whole():
            return 1


def group_count(layout: Layout, size: int) -> int:
    """Groups in a segment of `size` elements that starts at a group boundary."""
    match layout:
        case Runs(run):
            return -(-size // run)
        case RaggedRows(columns, run):
            return size // columns * -(-columns // run)
        case Tiles(columns, height, width):
            return -(-size // (columns * height)) * -(-columns // width)
        case Columns(columns):
            return columns
        case Whole():
            return 1


def group_views(
    layout: Layout, elements: tuple[Array, ...], per_group: tuple[Array | None, ...]
) -> Iterator[tuple[tuple[Array, ...], tuple[Any, ...]]]:
    """Views of a segment's flat arrays, shaped so that arrays with one value per group broadcast
    against them. Runs and Whole give one group per row of the view. A short last group has a view
    of its own, and so have the tiles at an edge, which are four-dimensional `[tile row, height,
    tile column, width]`. Writing to the views writes to the arrays."""

    def pick(take_element: Any, take_group: Any) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        groups = tuple(None if g is None else take_group(g) for g in per_group)
        return tuple(take_element(e) for e in elements), groups

    size = elements[0].size
    if size == 0:
        return
    match layout:
        case Whole():
            yield pick(lambda e: e.reshape(1, -1), lambda g: g.reshape(1, 1))
        case Columns(columns):
            yield pick(lambda e: e.reshape(-1, columns), lambda g: g.reshape(1, columns))
        case Runs(run):
            full = size // run
            if full:
                cut = full * run
                yield pick(lambda e: e[:cut].reshape(full, run), lambda g: g[:full, None])
            if size % run:
                yield pick(lambda e: e[full * run :].reshape(1, -1), lambda g: g[full:, None])
        case RaggedRows(columns, run):
            rows, full = size // columns, columns // run
            cut = full * run
            yield pick(
                lambda e: e.reshape(rows, columns)[:, :cut].reshape(rows, full, run),
                lambda g: g.reshape(rows, full + 1)[:, :full, None],
            )
            yield pick(
                lambda e: e.reshape(rows, columns)[:, cut:],
                lambda g: g.reshape(rows, full + 1)[:, full:],
            )
        case Tiles(columns, height, width):
            for down in _whole_and_rest(size // columns, height):
                for across in _whole_and_rest(columns, width):
                    yield pick(
                        partial(_tiles, layout=layout, down=down, across=across),
                        partial(_of_tiles, layout=layout, down=down, across=across),
                    )


def _whole_and_rest(length: int, size: int) -> Iterator[slice]:
    """The part of `length` that consists of whole pieces of `size`, and the remaining piece."""
    whole = length // size * size
    if whole:
        yield slice(0, whole)
    if whole < length:
        yield slice(whole, length)


def _tiles(elements: Array, layout: Tiles, down: slice, across: slice) -> Array:
    part = elements.reshape(-1, layout.columns)[down, across]
    tall, wide = min(layout.height, part.shape[0]), min(layout.width, part.shape[1])
    return part.reshape(part.shape[0] // tall, tall, part.shape[1] // wide, wide)


def _of_tiles(per_group: Array, layout: Tiles, down: slice, across: slice) -> Array:
    """The values of these tiles, shaped to broadcast against their elements."""

    def pieces(part: slice, size: int) -> slice:
        return slice(part.start // size, -(-part.stop // size))

    grid = per_group.reshape(-1, -(-layout.columns // layout.width))
    part = grid[pieces(down, layout.height), pieces(across, layout.width)]
    return part[:, None, :, None]


def group_extents(kind: Extent, layout: Layout, x: Float32, scratch: Scratch) -> Float32:
    """Extents of the groups of a segment, `[kind.width, groups]`. A group with a NaN has a NaN
    extent, one with an infinity an infinite one: the caller checks for these and removes them. The
    magnitudes stay in the scratch buffer "magnitude", except for MIN_MAX and RANGE."""
    extents = np.empty((kind.width, group_count(layout, x.size)), np.float32)
    if x.size == 0:
        extents[...] = 0
    elif kind is Extent.MIN_MAX:
        np.minimum(_reduce(np.minimum, layout, x), 0, out=extents[0])
        np.maximum(_reduce(np.maximum, layout, x), 0, out=extents[1])
    elif kind is Extent.RANGE:
        extents[0] = _reduce(np.minimum, layout, x)
        extents[1] = _reduce(np.maximum, layout, x)
    elif kind is Extent.ABS_MEAN:
        extents[0] = group_means(layout, x, scratch)
    else:
        magnitude = np.abs(x, out=scratch.take("magnitude", x.size, np.float32))
        if kind is Extent.SIGNED:
            _signed_extremes(layout, x, magnitude, extents[0])
        else:
            # Non-negative floats have the order of their words (NaN highest), and integers are
            # reduced faster.
            extents[0] = _reduce(np.maximum, layout, magnitude.view(np.int32)).view(np.float32)
    return extents


def group_ranges(layout: Layout, x: Float32) -> Float32:
    """Extents of the kind RANGE `[2, groups]` of the elements that are not NaN; NaN for a group
    without any."""
    if x.size == 0:
        return np.full((2, group_count(layout, 0)), np.nan, np.float32)
    return np.stack([_reduce(np.fmin, layout, x), _reduce(np.fmax, layout, x)])


def group_means(
    layout: Layout, x: Float32, scratch: Scratch, finite: Array | None = None
) -> npt.NDArray[np.float64]:
    """Mean magnitude of each group `[groups]`, only of elements where `finite` is true; 0 if there
    are none."""
    sums = _group_sums(layout, _magnitudes(x, scratch, finite))
    counts = _group_sums(layout, np.ones(x.size) if finite is None else finite.astype(np.float64))
    return sums / np.maximum(counts, 1)


def partial_sums(
    layout: Layout, x: Float32, scratch: Scratch
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Sums and counts of the finite magnitudes in the parts of a segment of Whole or Columns, each
    `[parts, groups]`. Segments start at multiples of `part_size(layout)`."""
    part = Runs(part_size(layout))
    finite = np.isfinite(x)
    magnitudes = _magnitudes(x, scratch, None if finite.all() else finite)
    if isinstance(layout, Columns):
        starts = np.arange(0, x.size // layout.columns, part.size // layout.columns)
        sums, counts = (
            np.add.reduceat(values.reshape(-1, layout.columns), starts, axis=0, dtype=np.float64)
            for values in (magnitudes, finite)
        )
        return sums, counts
    return (
        _group_sums(part, magnitudes)[:, None],
        _group_sums(part, finite.astype(np.float64))[:, None],
    )


def part_size(layout: Layout) -> int:
    """Elements of a part: whole rows if there is a scale for each column."""
    if isinstance(layout, Columns):
        columns = max(1, layout.columns)
        return columns * max(1, PART // columns)
    return PART


def _magnitudes(x: Float32, scratch: Scratch, finite: Array | None) -> npt.NDArray[np.float64]:
    """Magnitudes in float64, with 0 for nonfinite elements."""
    wide: npt.NDArray[np.float64] = scratch.take("wide", x.size, np.float64)
    np.abs(x, out=wide)
    if finite is not None:
        wide[~finite] = 0
    return wide


def _group_sums(layout: Layout, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    sums = np.empty(group_count(layout, values.size))
    for (view,), (target,) in group_views(layout, (values,), (sums,)):
        if isinstance(layout, Tiles):
            np.sum(view.sum(axis=3), axis=1, out=target[:, 0, :, 0])
        else:
            axis = 0 if isinstance(layout, Columns) else -1
            np.sum(view, axis=axis, keepdims=True, out=target)
    return sums


def _reduce(which: np.ufunc, layout: Layout, x: Array) -> Array:
    """Minimum or maximum of each group, in the order of the groups."""
    if isinstance(layout, Columns):
        result: Array = which.reduce(x.reshape(-1, layout.columns), axis=0)
        return result
    if isinstance(layout, Tiles):
        matrix = x.reshape(-1, layout.columns)
        # Whole rows of tiles at once: `reduceat` down the columns is six times slower.
        tall = np.concatenate([
            which.reduce(part.reshape(-1, min(layout.height, len(part)), layout.columns), axis=1)
            for part in (matrix[d] for d in _whole_and_rest(len(matrix), layout.height))
        ])  # fmt: skip
        tiles: Array = which.reduceat(tall, np.arange(0, layout.columns, layout.width), axis=1)
        return tiles.reshape(-1)
    return which.reduceat(x, _group_starts(layout, x.size))


def _group_starts(layout: Layout, size: int) -> npt.NDArray[np.intp]:
    """Where each group of a segment starts, for layouts of consecutive elements."""
    match layout:
        case Runs(run):
            return np.arange(0, size, run)
        case RaggedRows(columns, run):
            return np.add.outer(np.arange(0, size, columns), np.arange(0, columns, run)).reshape(-1)
        case _:
            return np.zeros(1, np.intp)


def _signed_extremes(layout: Layout, x: Float32, magnitude: Float32, out: Float32) -> None:
    axis = 0 if isinstance(layout, Columns) else -1
    for (values, sizes), (target,) in group_views(layout, (x, magnitude), (out,)):
        if isinstance(layout, Tiles):
            values, sizes = _tile_by_tile(values), _tile_by_tile(sizes)
            first = sizes.argmax(axis=-1)[..., None]
            target[:, 0, :, 0] = np.take_along_axis(values, first, axis=-1)[..., 0]
            continue
        first = np.expand_dims(sizes.argmax(axis=axis), axis)
        target[...] = np.take_along_axis(values, first, axis=axis)


def _tile_by_tile(view: Array) -> Array:
    """A four-dimensional view of tiles as `[tile row, tile column, element]`, copied."""
    down, tall, across, wide = view.shape
    return view.transpose(0, 2, 1, 3).reshape(down, across, tall * wide)


def merge_extents(kind: Extent, first: Float32, second: Float32) -> Float32:
    """Extents of groups from two parts, of which the first is earlier in the tensor."""
    match kind:
        case Extent.ABSMAX:
            return np.maximum(first, second)
        case Extent.MIN_MAX:
            low, high = np.minimum(first[0], second[0]), np.maximum(first[1], second[1])
            return np.stack([low, high])
        case Extent.RANGE:
            return np.stack([np.fmin(first[0], second[0]), np.fmax(first[1], second[1])])
        case Extent.SIGNED:
            return np.where(np.abs(second) > np.abs(first), second, first)
        case Extent.ABS_MEAN:
            raise AssertionError("means are merged by their sums")


def largest_magnitude(extents: Float32) -> float:
    """The largest magnitude in any group, 0.0 if there are none."""
    return float(np.abs(extents).max()) if extents.size else 0.0


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
