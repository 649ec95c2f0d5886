"""Which consecutive elements share a scale, given the shape of the tensor: every granularity is one
of five layouts of the flattened tensor. The groups of a segment as array views, and their extents.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.schemes.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
    PerTile,
    PerToken,
)

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

#: Elements at once for several small steps: in the second-level cache, and long for two threads.
CACHED = 1 << 18


_own = threading.local()


def work_array(name: str, size: int) -> Float32:
    """An uninitialised array `[size]`, whose memory the thread uses again for the next of this
    name. The page faults of a fresh one of 2 MB take as long as the arithmetic on it: of `inspect
    --full` they were a fifth."""
    held: Float32 | None = getattr(_own, name, None)
    if held is None or held.size < size:
        held = np.empty(size, np.float32)
        if size <= 1 << 21:
            setattr(_own, name, held)
    return held[:size]


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """`[rows, columns]` of a tensor, as the docstring of `granularity` defines them."""
    if len(shape) == 3:
        return shape[0] * shape[1], shape[2]
    if len(shape) >= 2:
        return shape[0], math.prod(shape[1:])
    return 1, math.prod(shape)


@dataclass(frozen=True)
class Whole:
    """One scale for all elements."""


@dataclass(frozen=True)
class Runs:
    """One scale for each `size` consecutive elements of the flattened tensor; the last run
    may be short."""

    size: int


@dataclass(frozen=True)
class RaggedRows:
    """Rows of `columns` elements, each cut into runs of `size`, which does not divide it: every row
    ends in a short run."""

    columns: int
    size: int


@dataclass(frozen=True)
class Columns:
    """One scale for each of `columns` columns."""

    columns: int


@dataclass(frozen=True)
class Tiles:
    """One scale for each tile of `height` by `width` elements of rows of `columns`; the tiles at
    the right and the lower edge may be smaller."""

    columns: int
    height: int
    width: int


Layout = Whole | Runs | RaggedRows | Columns | Tiles


def tiles_of(
    granularity: Granularity | None, shape: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The matrix that a tensor is seen as, `(rows, columns)`, and how many of its rows and columns
    share a scale; what remains at its right and lower edge has scales too."""
    rows, columns = matrix_shape(shape)
    match granularity:
        case PerRow():
            return (rows, columns), (1, columns)
        case PerColumn():
            return (rows, columns), (rows, 1)
        case PerGroup(size):
            return (rows, columns), (1, size)
        case PerTile(height, width):
            return (rows, columns), (height, width)
        case PerToken():  # the last dimension, whatever the others are
            length = shape[-1] if shape else 1
            return (rows * columns // max(1, length), length), (1, length)
        case PerBlock(size):
            return (1, rows * columns), (1, size)
    return (rows, columns), (rows, columns)


def layout_of(granularity: Granularity | None, shape: tuple[int, ...]) -> Layout:
    """The layout of a tensor of this shape; Whole if there is no scale."""
    (rows, columns), (height, width) = tiles_of(granularity, shape)
    count, height, width = rows * columns, min(height, rows), min(width, columns)
    if isinstance(granularity, PerColumn) and rows > 1:
        return Columns(columns)
    if not count:
        return Whole()
    if width == columns or (height == 1 and (rows == 1 or columns % width == 0)):
        # A single block keeps its own layout, as its kernels recognise a short block by its length.
        single = isinstance(granularity, PerBlock) and granularity.size == count
        return Runs(height * width) if single or 0 < height * width < count else Whole()
    return RaggedRows(columns, width) if height == 1 else Tiles(columns, height, width)


def scale_shape(granularity: Granularity | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the array of scales, as the docstrings of the granularities give it."""
    (rows, columns), (height, width) = tiles_of(granularity, shape)
    if granularity is None or rows * columns == 0:
        return (0,)
    grid = -(-rows // height), -(-columns // width)
    return grid[1:] if isinstance(granularity, PerModel | PerTensor | PerBlock) else grid


def scale_index(
    granularity: Granularity | None, shape: tuple[int, ...], row: int, column: int
) -> int | None:
    """The index of the scale of element [row, column] in the flattened scales; None without
    scales."""
    if granularity is None:
        return None
    (_, columns), (height, width) = tiles_of(granularity, shape)
    row, column = divmod(row * matrix_shape(shape)[1] + column, columns)
    return row // height * -(-columns // width) + column // width


def run_lengths(granularity: Granularity | None, shape: tuple[int, ...]) -> dict[int, int]:
    """How many groups there are of each length: `{64: 1000, 12: 1}`. Empty without scales."""
    (rows, columns), (height, width) = tiles_of(granularity, shape)
    if granularity is None or rows * columns == 0:
        return {}
    lengths: Counter[int] = Counter()
    for tall, times in _cut(rows, height).items():
        for wide, many in _cut(columns, width).items():
            lengths[tall * wide] += times * many
    return dict(lengths)


def _cut(length: int, size: int) -> dict[int, int]:
    """How many pieces of each length `size` cuts a length into."""
    full, rest = divmod(length, size)
    return {piece: times for piece, times in ((size, full), (rest, 1)) if piece and times}


def rectangles(
    start: int, columns: int, *arrays: Array
) -> Iterator[tuple[slice, slice, list[Array]]]:
    """Consecutive elements of a matrix, from `start` on, as at most three rectangles: their rows,
    their columns, and the views of the flat `arrays` of these elements."""
    stop = start + arrays[0].size
    at = start
    while at < stop:
        row, left = divmod(at, columns)
        last, right = row + 1, min(columns, left + stop - at)
        if not left and stop - at >= columns:
            last, right = stop // columns, columns
        size = (last - row) * (right - left)
        views = [a[at - start : at - start + size].reshape(last - row, -1) for a in arrays]
        yield slice(row, last), slice(left, right), views
        at += size


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


Place = tuple[Any, ...]


def _places(layout: Layout, size: int) -> Iterator[tuple[tuple[int, ...], Place, Place, Place]]:
    """For groups of equal length: the shape that elements are seen in, what of it, in which shape
    again, and what of the groups (a shape and an index, which broadcasts)."""
    match layout:
        case Whole():
            yield (1, size), (), (1, size), ((1, 1), ())
        case Columns(columns):
            yield (-1, columns), (), (-1, columns), ((1, columns), ())
        case Runs(run):
            full = size // run
            if full:
                yield (size,), np.s_[: full * run,], (full, run), ((-1, 1), np.s_[:full])
            if size % run:
                yield (size,), np.s_[full * run :,], (1, -1), ((-1, 1), np.s_[full:])
        case RaggedRows(columns, run):
            full = columns // run
            rows, wide, groups = (-1, columns), full * run, (-1, full + 1, 1)
            yield rows, np.s_[:, :wide], (-1, full, run), (groups, np.s_[:, :full])
            yield rows, np.s_[:, wide:], (-1, 1, columns - wide), (groups, np.s_[:, full:])
        case Tiles(columns, height, width):
            grid = (-1, 1, -(-columns // width), 1)
            for down in _whole_and_rest(size // columns, height):
                for across in _whole_and_rest(columns, width):
                    tall, wide = min(height, down.stop - down.start), min(width, columns)
                    wide = min(wide, across.stop - across.start)
                    tiles = _tiles_of(down, height), slice(None), _tiles_of(across, width)
                    shape = (-1, tall, (across.stop - across.start) // wide, wide)
                    yield (-1, columns), (down, across), shape, (grid, tiles)


def _whole_and_rest(length: int, size: int) -> Iterator[slice]:
    """The part of `length` that consists of whole pieces of `size`, and the remaining piece."""
    whole = length // size * size
    if whole:
        yield slice(0, whole)
    if whole < length:
        yield slice(whole, length)


def _tiles_of(part: slice, size: int) -> slice:
    return slice(part.start // size, -(-part.stop // size))


def group_views(
    layout: Layout, elements: tuple[Array | None, ...], per_group: tuple[Array | None, ...] = ()
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Views of flat arrays of the elements of a segment, in which groups have equal length, each
    with views of arrays of the groups that broadcast with them. None stays None. The elements of a
    group are along the last axis, along the first for Columns, and along 1 and 3 for Tiles."""
    size = next(e.size for e in elements if e is not None)
    for shape, part, again, (grid, groups) in _places(layout, size) if size else ():
        yield (
            [e if e is None else e.reshape(shape)[part].reshape(again) for e in elements],
            [g if g is None else g.reshape(grid)[groups] for g in per_group],
        )


def cached_views(
    layout: Layout, elements: tuple[Array | None, ...], per_group: tuple[Array | None, ...] = ()
) -> Iterator[tuple[list[Any], list[Any]]]:
    """The same in pieces that stay in the cache, which may cut groups."""
    for views, groups in group_views(layout, elements, per_group):
        shape = next(v.shape for v in views if v is not None)
        axis = int(shape[0] == 1 and len(shape) == 2)
        step = max(1, CACHED // max(1, math.prod(shape[axis + 1 :])))
        for start in range(0, shape[axis], step):
            at = (slice(None),) * axis + (slice(start, start + step),)
            yield (
                [v if v is None else v[at] for v in views],
                [g if g is None or g.shape[axis] == 1 else g[at] for g in groups],
            )


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


def group_extents(kind: Extent, layout: Layout, x: Float32, counted: Bool | None = None) -> Float32:
    """Extents of the groups of a segment, `[kind.width, groups]`, over the elements that are
    `counted`: all if None, and then all are finite. 0 for a group without any, NaN for RANGE."""
    groups = group_count(layout, x.size)
    if kind is Extent.ABS_MEAN:
        sums, counts = group_sums(layout, x, counted)
        return (sums / np.maximum(counts, 1)).astype(np.float32)[None]
    if counted is not None:
        x = np.where(counted, x, np.float32(np.nan if kind is Extent.RANGE else 0))
    if not x.size:
        return np.full((kind.width, groups), np.nan if kind is Extent.RANGE else 0, np.float32)
    match kind:
        case Extent.ABSMAX:
            # Magnitudes have the order of their words, and integers are reduced faster.
            words = np.abs(x, out=work_array("magnitude", x.size)).view(np.int32)
            return _reduce(np.maximum, layout, words).view(np.float32)[None]
        case Extent.MIN_MAX:
            low, high = _reduce(np.minimum, layout, x), _reduce(np.maximum, layout, x)
            return np.stack([np.minimum(low, 0), np.maximum(high, 0)])
        case Extent.RANGE:
            return np.stack([_reduce(np.fmin, layout, x), _reduce(np.fmax, layout, x)])
    extremes = np.empty(groups, np.float32)
    for (values,), (target,) in group_views(layout, (x,), (extremes,)):
        if isinstance(layout, Tiles):
            values = values.swapaxes(1, 2).reshape(*target.shape[::2], -1)
            target = target[:, 0, :, 0]
        elif isinstance(layout, Columns):
            values, target = values.T, target[0]
        else:
            target = target[..., 0]
        first = np.abs(values).argmax(axis=-1)[..., None]
        target[...] = np.take_along_axis(values, first, axis=-1)[..., 0]
    return extremes[None]


def group_sums(layout: Layout, x: Float32, counted: Bool | None = None) -> tuple[Float64, Float64]:
    """The sum of the magnitudes of each group, and how many elements that is, both `[groups]`."""
    magnitudes = np.abs(x.astype(np.float64))
    ones = np.ones(x.size) if counted is None else counted.astype(np.float64)
    if counted is not None:
        magnitudes[~counted] = 0
    if not x.size:
        return np.zeros(group_count(layout, 0)), np.zeros(group_count(layout, 0))
    return _reduce(np.add, layout, magnitudes), _reduce(np.add, layout, ones)


def _reduce(which: np.ufunc, layout: Layout, x: Array) -> Array:
    """Minimum, maximum or sum of each group, in the order of the groups."""
    match layout:
        case Columns(columns):
            result: Array = which.reduce(x.reshape(-1, columns), axis=0)
            return result
        case Tiles(columns, height, width):
            matrix = x.reshape(-1, columns)
            # Whole rows of tiles at once: `reduceat` down the columns is six times slower.
            tall = np.concatenate([
                which.reduce(part.reshape(-1, min(height, len(part)), columns), axis=1)
                for part in (matrix[down] for down in _whole_and_rest(len(matrix), height))
            ])  # fmt: skip
            tiles: Array = which.reduceat(tall, np.arange(0, columns, width), axis=1)
            return tiles.reshape(-1)
        case Runs(run):
            return which.reduceat(x, np.arange(0, x.size, run))
        case RaggedRows(columns, run):
            starts = np.add.outer(np.arange(0, x.size, columns), np.arange(0, columns, run))
            return which.reduceat(x, starts.reshape(-1))
    return which.reduce(x, keepdims=True)


def merge_extents(kind: Extent, first: Float32, second: Float32) -> Float32:
    """Extents of groups from two parts, of which the first is earlier in the tensor."""
    match kind:
        case Extent.ABSMAX:
            return np.maximum(first, second)
        case Extent.SIGNED:
            return np.where(np.abs(second) > np.abs(first), second, first)
    return np.stack([np.fmin(first[0], second[0]), np.fmax(first[1], second[1])])


#: Magnitudes of groups larger than a segment are summed in parts of about this many elements, at
#: fixed places, so that the sum does not depend on the segments.
PART = 1 << 16


def part_size(layout: Layout) -> int:
    """Elements of a part: whole rows if there is a scale for each column."""
    if isinstance(layout, Columns):
        columns = max(1, layout.columns)
        return columns * max(1, PART // columns)
    return PART


def partial_sums(layout: Layout, x: Float32) -> tuple[Float64, Float64]:
    """Sums and counts of the finite magnitudes in the parts of a segment of Whole or Columns, each
    `[parts, groups]`. Segments start at multiples of `part_size(layout)`."""
    size, columns = part_size(layout), 1
    parts: Layout = Runs(size)
    if isinstance(layout, Columns):
        columns = layout.columns
        parts = Tiles(columns, size // columns, 1)
    sums, counts = group_sums(parts, x, np.isfinite(x))
    return sums.reshape(-1, columns), counts.reshape(-1, columns)
