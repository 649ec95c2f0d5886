"""How the values of a tensor are spread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.scan.statistics import statistics
from qtui_core.quant.segments.elements import Segment, TensorLike, elements_of
from qtui_core.quant.segments.parallel import Scratch, fractions_of, map_segments, thread_count

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts int64 `[bins]` between edges float64 `[bins + 1]` of equal width, over the finite
    elements; an element on an inner edge belongs to the bin above. Both empty for a tensor
    without finite elements."""

    counts: Int64
    edges: npt.NDArray[np.float64]


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
