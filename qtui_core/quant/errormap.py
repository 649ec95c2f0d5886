"""Where in a tensor the error is, small enough to draw; and how its values are spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qtui_core.quant.elements import ModelExtent, Segment, TensorLike, elements_of
from qtui_core.quant.layout import rectangles
from qtui_core.quant.parallel import Scratch, fractions_of, map_segments, thread_count
from qtui_core.quant.process import first_passes, make_plan, prepare, round_trip
from qtui_core.quant.scheme import Scheme
from qtui_core.quant.statistics import statistics

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """The largest |x - dequantized x| of each cell of a grid laid over a tensor.

    Attributes:
        cells: float32 `[r, c]`, at most as many as asked for and never more than the tensor
            has rows and columns. Elements that are not finite count as without error.
        rows, columns: int64 `[r, c]`, the element of the tensor (seen as a matrix) with that
            error, the first one on a tie.
        row_edges, column_edges: int64 `[r + 1]`, `[c + 1]`: cell [i, j] covers rows
            row_edges[i] to row_edges[i + 1] - 1, and columns likewise.
    """

    cells: npt.NDArray[np.float32]
    rows: Int64
    columns: Int64
    row_edges: Int64
    column_edges: Int64


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts int64 `[bins]` between edges float64 `[bins + 1]` of equal width, over the finite
    elements; an element on an inner edge belongs to the bin above. Both empty for a tensor
    without finite elements."""

    counts: Int64
    edges: npt.NDArray[np.float64]


def error_map(
    x: TensorLike,
    scheme: Scheme,
    rows_out: int,
    columns_out: int,
    *,
    model_absmax: ModelExtent | None = None,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> ErrorMap:
    """|error| of a scheme, max-pooled to at most `rows_out` by `columns_out` cells.

    Arguments and errors as `measure`; reads the tensor as often.
    """
    elements = elements_of(x)
    rows, columns = elements.matrix
    row_edges = _edges(rows, rows_out)
    column_edges = _edges(columns, columns_out)
    count = thread_count(elements.count, threads)
    passes = 1 + first_passes(scheme, elements.shape, model_absmax)
    advance = fractions_of(progress, passes * elements.count)
    with np.errstate(all="ignore"):
        plan = make_plan(
            elements, scheme, model_absmax, threads=count, advance=advance, cancelled=cancelled
        )

    def pooled(segment: Segment, scratch: Scratch) -> list[tuple[slice, slice, Int64, Int64]]:
        with np.errstate(all="ignore"):
            prepared = prepare(plan, segment, scratch)
            error = round_trip(plan, prepared, scratch)
            np.abs(np.subtract(prepared.values, error, out=error), out=error)
        if prepared.nonfinite is not None:
            error[prepared.nonfinite] = 0
        # Error and place in one integer, whose maximum is the largest error, first place:
        # the bits of a non-negative float32 are in the order of the floats.
        key = scratch.take("key", error.size, np.uint64)
        np.copyto(key, error.view(np.uint32))
        key <<= np.uint64(32)
        key |= np.arange(error.size, dtype=np.uint32)[::-1]
        parts = []
        for first, last, left, right in rectangles(segment.start, error.size, columns):
            offset = first * columns + left - segment.start
            tile = key[offset : offset + (last - first) * (right - left)]
            tile = tile.reshape(last - first, right - left)
            r, c = _bins(row_edges, first, last), _bins(column_edges, left, right)
            best = np.maximum.reduceat(tile, _starts(row_edges, r, first), axis=0)
            best = np.maximum.reduceat(best, _starts(column_edges, c, left), axis=1)
            place = (
                segment.start + error.size - 1 - (best & np.uint64(0xFFFF_FFFF)).astype(np.int64)
            )
            parts.append((r, c, (best >> np.uint64(32)).astype(np.int64), place))
        return parts

    size = (len(row_edges) - 1, len(column_edges) - 1)
    bits, places = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    for parts in map_segments(
        pooled,
        elements.segments(plan.multiple),
        threads=count,
        advance=advance,
        cancelled=cancelled,
    ):
        for r, c, found, place in parts:
            larger = found > bits[r, c]
            bits[r, c] = np.where(larger, found, bits[r, c])
            places[r, c] = np.where(larger, place, places[r, c])
    return ErrorMap(
        cells=np.maximum(bits, 0).astype(np.uint32).view(np.float32),
        rows=places // max(1, columns),
        columns=places % max(1, columns),
        row_edges=row_edges,
        column_edges=column_edges,
    )


def histogram(
    x: TensorLike,
    bins: int,
    *,
    low: float | None = None,
    high: float | None = None,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> Histogram:
    """How the elements are spread from `low` to `high`, by default the smallest and the
    largest finite one (one more pass). Elements outside the range are not counted.

    A tensor of one value gets a range of width 1 around it, as in numpy, or a wider one where
    the value is so large that a width of 1 could not be told from none.
    """
    elements = elements_of(x)
    passes = 1 if low is not None and high is not None else 2
    advance = fractions_of(progress, passes * elements.count)
    if low is None or high is None:
        stats = statistics(
            x,
            progress=None if progress is None else lambda done: progress(done / 2),
            cancelled=cancelled,
            threads=threads,
        )
        if advance:
            advance(elements.count)
        if stats.min is None or stats.max is None:
            return Histogram(np.empty(0, np.int64), np.empty(0))
        low = stats.min if low is None else low
        high = stats.max if high is None else high
    if low == high:
        around = max(0.5, abs(low) * 2.0**-24)
        low, high = low - around, high + around
    smallest, largest = _float32_within(low, high)
    edges = np.linspace(low, high, bins + 1)

    def count_bins(segment: Segment, scratch: Scratch) -> Int64:
        values = segment.float32()
        with np.errstate(invalid="ignore"):
            inside = values[(values >= smallest) & (values <= largest)]
        place = inside.astype(np.float64)
        place -= low
        place *= bins / (high - low)
        index = np.minimum(place.astype(np.int64), bins - 1)
        # Arithmetic may land one bin off beside an edge; the edges decide.
        index -= inside < edges[index]
        index += (inside >= edges[index + 1]) & (index < bins - 1)
        return np.bincount(index, minlength=bins)

    counts = np.zeros(bins, np.int64)
    for part in map_segments(
        count_bins,
        elements.segments(),
        threads=thread_count(elements.count, threads),
        advance=advance,
        cancelled=cancelled,
    ):
        counts += part
    return Histogram(counts, edges)


def _float32_within(low: float, high: float) -> tuple[np.float32, np.float32]:
    """The smallest and the largest finite float32 in [low, high], so that elements can be
    compared as they are; the first is larger than the second where there is none."""
    with np.errstate(over="ignore"):
        smallest, largest = np.float32(low), np.float32(high)
    if smallest < np.float64(low):
        smallest = np.nextafter(smallest, np.float32(np.inf))
    if largest > np.float64(high):
        largest = np.nextafter(largest, np.float32(-np.inf))
    return smallest, largest


def _edges(length: int, wanted: int) -> Int64:
    """Boundaries of `wanted` nearly equal parts of `length`, none empty."""
    parts = max(0, min(length, wanted))
    return np.arange(parts + 1, dtype=np.int64) * length // max(1, parts)


def _bins(edges: Int64, first: int, last: int) -> slice:
    """The parts that [first, last) touches."""
    low = int(np.searchsorted(edges, first, side="right")) - 1
    return slice(low, int(np.searchsorted(edges, last, side="left")))


def _starts(edges: Int64, bins: slice, first: int) -> Int64:
    """Where in a piece that starts at `first` each of those parts starts."""
    return np.maximum(edges[bins.start : bins.stop] - first, 0)
