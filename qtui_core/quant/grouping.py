"""Groups of a segment as array views, and the extent of each group."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.quant.elements import Float32
from qtui_core.quant.layout import Columns, Layout, RaggedRows, Runs, Whole
from qtui_core.quant.parallel import Scratch

Array = npt.NDArray[Any]


class Extent(Enum):
    """What a scale is computed from. The value is how many numbers that is for a group."""

    ABSMAX = 1
    """The largest magnitude."""
    MIN_MAX = 2
    """The smallest and the largest value, zero included."""
    SIGNED = -1
    """The first element of the largest magnitude, with its sign."""

    @property
    def width(self) -> int:
        return abs(self.value)


def segment_multiple(layout: Layout) -> int:
    """Segments cut at multiples of this hold whole groups (where groups are local)."""
    match layout:
        case Runs(size):
            return size
        case RaggedRows(columns, _) | Columns(columns):
            return max(1, columns)
        case Whole():
            return 1


def group_count(layout: Layout, size: int) -> int:
    """Groups in a segment of `size` elements that starts at a group boundary."""
    match layout:
        case Runs(run):
            return -(-size // run)
        case RaggedRows(columns, run):
            return size // columns * -(-columns // run)
        case Columns(columns):
            return columns
        case Whole():
            return 1


def group_views(
    layout: Layout, elements: tuple[Array, ...], per_group: tuple[Array | None, ...]
) -> Iterator[tuple[tuple[Array, ...], tuple[Any, ...]]]:
    """Views of flat arrays of a segment, shaped so that arrays with one value per group
    broadcast against them. Runs and Whole give one group per row of the view; a short last
    group comes as a view of its own. Writing to the views writes to the arrays."""

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


def group_extents(kind: Extent, layout: Layout, x: Float32, scratch: Scratch) -> Float32:
    """Extents of the groups of a segment, `[kind.width, groups]`. A group with a NaN has a
    NaN extent, one with an infinity an infinite one: the caller looks, and cleans then. The
    magnitudes it was found from stay in the scratch buffer "magnitude", MIN_MAX aside."""
    extents = np.empty((kind.width, group_count(layout, x.size)), np.float32)
    if x.size == 0:
        extents[...] = 0
    elif kind is Extent.MIN_MAX:
        np.minimum(_reduce(np.minimum, layout, x), 0, out=extents[0])
        np.maximum(_reduce(np.maximum, layout, x), 0, out=extents[1])
    else:
        magnitude = np.abs(x, out=scratch.take("magnitude", x.size, np.float32))
        if kind is Extent.SIGNED:
            _signed_extremes(layout, x, magnitude, extents[0])
        else:
            # Non-negative floats are in the order of their words (NaN highest), and integers
            # are reduced faster.
            extents[0] = _reduce(np.maximum, layout, magnitude.view(np.int32)).view(np.float32)
    return extents


def _reduce(which: np.ufunc, layout: Layout, x: Array) -> Array:
    """Minimum or maximum of each group, in the order of the groups."""
    if isinstance(layout, Columns):
        result: Array = which.reduce(x.reshape(-1, layout.columns), axis=0)
        return result
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
        first = np.expand_dims(sizes.argmax(axis=axis), axis)
        target[...] = np.take_along_axis(values, first, axis=axis)


def merge_extents(kind: Extent, first: Float32 | None, second: Float32) -> Float32:
    """Extents of groups seen in two parts, the first part earlier in the tensor."""
    if first is None:
        return second
    match kind:
        case Extent.ABSMAX:
            return np.maximum(first, second)
        case Extent.MIN_MAX:
            low, high = np.minimum(first[0], second[0]), np.maximum(first[1], second[1])
            return np.stack([low, high])
        case Extent.SIGNED:
            return np.where(np.abs(second) > np.abs(first), second, first)


def largest_magnitude(extents: Float32) -> float:
    """The largest magnitude in any group, 0.0 where there are none."""
    return float(np.abs(extents).max()) if extents.size else 0.0
