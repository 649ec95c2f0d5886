"""Statistics of a tensor in one pass, and how its values are spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qtui_core.answers import TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Job
from qtui_core.quant.elements import Elements, Segment, TensorLike, elements_of
from qtui_core.quant.layout import Float32, Float64, Int64, work_array
from qtui_core.quant.plan import scan
from qtui_core.quant.reading import Reducer

#: If all magnitudes are within these bounds, the fourth powers of distances to the mean, which are
#: at most twice as large, sum to a float32 over a segment: 2^19 (2 x 5e7)^4 = 5e37.
SAFE_MAGNITUDES = (1e-8, 5e7)
#: Below this variance fourth powers vanish in float32, whatever the magnitudes.
SAFE_VARIANCE = 1e-16


@dataclass(frozen=True)
class Moments:
    """Central moments of `count` numbers: sums of powers of their distance to the mean."""

    count: int = 0
    mean: float = 0.0
    second: float = 0.0
    third: float = 0.0
    fourth: float = 0.0

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets together (Chan, Golub and LeVeque 1979; Pébay 2008 for the third
        and fourth)."""
        if not self.count or not other.count:
            return self if self.count else other
        a, b = self.count, other.count
        n = a + b
        delta = other.mean - self.mean
        shift = delta / n
        cross = delta * shift * a * b
        return Moments(
            count=n,
            mean=self.mean + b * shift,
            second=self.second + other.second + cross,
            third=self.third
            + other.third
            + cross * shift * (a - b)
            + 3 * shift * (a * other.second - b * self.second),
            fourth=self.fourth
            + other.fourth
            + cross * shift * shift * (a * a - a * b + b * b)
            + 6 * shift * shift * (a * a * other.second + b * b * self.second)
            + 4 * shift * (a * other.third - b * self.third),
        )


class StatisticsScan(Reducer[tuple[Any, ...]]):
    """Statistics of the elements that are read. Sums are float32 within a segment, and float64 over
    the segments."""

    def begin(self, elements: Elements) -> None:
        self._count = elements.count
        self._moments, self._low, self._high = Moments(), math.inf, -math.inf
        self._nan = self._inf = self._zeros = 0

    def take(self, segment: Segment) -> tuple[Any, ...]:
        """Moments, smallest, largest, and how many are NaN, infinite and zero."""
        x = segment.values
        low, high = float(x.min()), float(x.max())
        nan = inf = 0
        if not (math.isfinite(low) and math.isfinite(high)):
            nan, inf = (int(np.count_nonzero(which(x))) for which in (np.isnan, np.isinf))
            x = x[np.isfinite(x)]
            low, high = float(x.min(initial=math.inf)), float(x.max(initial=-math.inf))
        zeros = x.size - int(np.count_nonzero(x))
        return _moments(x, max(abs(low), abs(high))), low, high, nan, inf, zeros

    def add(self, part: tuple[Any, ...]) -> None:
        moments, low, high, nan, inf, zeros = part
        self._moments = self._moments.merged(moments)
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._nan += nan
        self._inf += inf
        self._zeros += zeros

    def result(self) -> TensorStatistics:
        moments, n = self._moments, self._moments.count
        kurtosis = None
        if n and moments.second > 0:
            # Divided twice instead of by the square, which could leave the range of a float64.
            kurtosis = moments.fourth / moments.second / moments.second * n
        return TensorStatistics(
            count=self._count,
            finite=n,
            nan=self._nan,
            inf=self._inf,
            zeros=self._zeros,
            min=self._low if n else None,
            max=self._high if n else None,
            mean=moments.mean if n else None,
            std=math.sqrt(moments.second / n) if n else None,
            absmax=max(abs(self._low), abs(self._high)) if n else 0.0,
            kurtosis=kurtosis if kurtosis is not None and math.isfinite(kurtosis) else None,
        )


def statistics(x: TensorLike, job: Job = IDLE) -> TensorStatistics:
    """Statistics of `x`, which is what `quantize` takes and is read once. Raises as `measure`
    does."""
    reducer = StatisticsScan()
    scan(x, [reducer], job=job)
    return reducer.result()


def _moments(x: Float32, absmax: float) -> Moments:
    n = x.size
    if n == 0:
        return Moments()
    safe = absmax == 0 or SAFE_MAGNITUDES[0] <= absmax <= SAFE_MAGNITUDES[1]
    if safe:
        centre = x.sum() / np.float32(n)
        d = np.subtract(x, centre, out=work_array("error", n))
        square = np.square(d, out=work_array("squares", n))
        second = float(square.sum())
        safe = absmax == 0 or second > n * SAFE_VARIANCE
    if not safe:
        centre = x.mean(dtype=np.float64)
        d = x.astype(np.float64) - centre
        square = np.square(d)
        second = float(square.sum())
    first = float(d.sum())
    third = float(np.multiply(d, square, out=d).sum())
    fourth = float(np.square(square, out=square).sum())
    # The centre is the mean except for rounding; the moments are shifted by the difference.
    e = first / n
    return Moments(
        count=n,
        mean=float(centre) + e,
        second=max(0.0, second - n * e * e),
        third=third - 3 * e * second + 2 * n * e**3,
        fourth=max(0.0, fourth - 4 * e * third + 6 * e * e * second - 3 * n * e**4),
    )


#: Far more than a screen has columns.
MOST_BINS = 1 << 20


Histogram = tuple[Int64, Float64]


class HistogramScan(Reducer[Int64]):
    """Counts the elements from `low` to `high`; elements outside are not counted."""

    def __init__(self, bins: int, low: float, high: float) -> None:
        if not 1 <= bins <= MOST_BINS:
            raise UsageError(f"A histogram has 1 to {MOST_BINS:,} bins.")
        if low == high:
            around = max(0.5, abs(low) * 2.0**-24)
            low, high = low - around, high + around
        self.bins, self.low, self.high = bins, low, high
        self._edges = np.linspace(low, high, bins + 1)

    def begin(self, elements: Elements) -> None:
        self._counts = np.zeros(self.bins, np.int64)

    def take(self, segment: Segment) -> Int64:
        values, edges, last = segment.values, self._edges, self.bins - 1
        inside = values[(values >= np.float64(self.low)) & (values <= np.float64(self.high))]
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

    def result(self) -> Histogram:
        return self._counts, self._edges


def histogram(
    x: TensorLike,
    bins: int,
    *,
    low: float | None = None,
    high: float | None = None,
    job: Job = IDLE,
) -> Histogram:
    """The distribution of the elements from `low` to `high`: how many lie in each bin, int64
    `[bins]`, and the edges of the bins, float64 `[bins + 1]`, of equal distance, as from numpy. An
    element on an inner edge belongs to the bin above it, one outside is not counted. Both are empty
    if no element is finite. By default `low` and `high` are the smallest and the largest finite
    element, which takes one more pass.

    If all elements have one value, the range is 1 wide around it, as in numpy, or wider if a width
    of 1 would vanish in rounding beside a large value.

    Raises UsageError for less than one bin or more than MOST_BINS.
    """
    elements = elements_of(x)
    if low is None or high is None:
        stats = statistics(elements, job.part(0.0, 0.5))
        job = job.part(0.5, 1.0)
        if stats.min is None or stats.max is None:
            return np.empty(0, np.int64), np.empty(0)
        low = stats.min if low is None else low
        high = stats.max if high is None else high
    reducer = HistogramScan(bins, low, high)
    scan(elements, [reducer], job=job)
    return reducer.result()
