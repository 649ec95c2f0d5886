"""How the values of a tensor are spread."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.quant.scan.reducer import Reducer
from qtui_core.quant.scan.scan import scan
from qtui_core.quant.scan.statistics import statistics
from qtui_core.quant.segments.elements import Elements, Segment, TensorLike, elements_of
from qtui_core.quant.segments.parallel import Scratch, Watch, fractions_of, progress_of

Int64 = npt.NDArray[np.int64]
#: Far more than a screen has columns.
MOST_BINS = 1 << 20


@dataclass(frozen=True, eq=False)
class ValueHistogram:
    """How many finite elements lie in each bin.

    Attributes:
        counts: int64 `[bins]`. An element on an inner edge belongs to the bin above it.
        edges: float64 `[bins + 1]`, of equal distance. Both arrays are empty if no element is
            finite.
    """

    counts: Int64
    edges: npt.NDArray[np.float64]


class HistogramScan(Reducer[Int64]):
    """Counts the elements from `low` to `high`; elements outside are not counted."""

    def __init__(self, bins: int, low: float, high: float) -> None:
        if not 1 <= bins <= MOST_BINS:
            raise UsageError(f"A histogram has 1 to {MOST_BINS:,} bins.")
        if low == high:
            around = max(0.5, abs(low) * 2.0**-24)
            low, high = low - around, high + around
        self.bins, self.low, self.high = bins, low, high
        self._smallest, self._largest = _float32_within(low, high)
        self._edges = np.linspace(low, high, bins + 1)

    def begin(self, elements: Elements) -> None:
        self._counts = np.zeros(self.bins, np.int64)

    def take(self, segment: Segment, scratch: Scratch) -> Int64:
        values, edges, last = segment.float32(), self._edges, self.bins - 1
        inside = values[(values >= self._smallest) & (values <= self._largest)]
        place = inside.astype(np.float64)
        place -= self.low
        place *= self.bins / (self.high - self.low)
        index = np.minimum(place.astype(np.int64), last)
        # Beside an edge, rounding may give the neighbouring bin; the edges decide.
        index -= inside < edges[index]
        index += (inside >= edges[index + 1]) & (index < last)
        return np.bincount(index, minlength=self.bins)

    def add(self, part: Int64) -> None:
        self._counts += part

    def result(self) -> ValueHistogram:
        return ValueHistogram(self._counts, self._edges)


def histogram(
    x: TensorLike,
    bins: int,
    *,
    low: float | None = None,
    high: float | None = None,
    **watch: Unpack[Watch],
) -> ValueHistogram:
    """The distribution of the elements from `low` to `high`. By default these are the smallest and
    the largest finite element, which takes one more pass. Elements outside the range are not
    counted.

    If all elements have one value, the range is 1 wide around it, as in numpy, or wider if a width
    of 1 would vanish in rounding beside a large value.

    Raises UsageError for less than one bin or more than MOST_BINS.
    """
    elements = elements_of(x)
    if low is None or high is None:
        half = fractions_of(watch.get("progress"), 2 * elements.count)
        watch["progress"] = progress_of(half, elements.count)
        stats = statistics(elements, **watch)
        watch["progress"] = progress_of(half, elements.count)
        if stats.min is None or stats.max is None:
            return ValueHistogram(np.empty(0, np.int64), np.empty(0))
        low = stats.min if low is None else low
        high = stats.max if high is None else high
    found = HistogramScan(bins, low, high)
    scan(elements, [found], **watch)
    return found.result()


def _float32_within(low: float, high: float) -> tuple[np.float32, np.float32]:
    """The smallest and the largest finite float32 in [low, high], so that elements can be compared
    without conversion. If there is none, the first is larger than the second."""
    with np.errstate(over="ignore"):
        smallest, largest = np.float32(low), np.float32(high)
    if smallest < np.float64(low):
        smallest = np.nextafter(smallest, np.float32(np.inf))
    if largest > np.float64(high):
        largest = np.nextafter(largest, np.float32(-np.inf))
    return smallest, largest
