"""Columns that stand out from the others: input features of a layer whose values are far larger
than the rest, in its weight or in its input; and their decomposition.

LLM.int8() (Dettmers et al. 2022, arXiv:2208.07339) keeps columns with an outlier in 16 bits and
quantizes the rest. A column of the matrix is kept if one of its finite elements has at least the
magnitude of the threshold; both are compared as float32. Kept elements are rounded to float16, at
most 65504 in magnitude; NaN and infinities stay. They are not quantized.

The scales of the other elements are computed without:

- for granularities row and token, as bitsandbytes does (`int8_vectorwise_quant`), all elements of
  at least the threshold. The smaller elements of a kept column count for the scale, although they
  are not quantized;
- for other granularities, all elements of kept columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.elements import Elements, Segment
from qtui_core.quant.layout import Bool, Float32, Float64, Int64, rectangles
from qtui_core.quant.reading import Reducer
from qtui_core.schemes.granularity import Granularity, PerRow, PerToken

Float16 = npt.NDArray[np.float16]

_LARGEST_HALF = np.float32(np.finfo(np.float16).max)

#: A column stands out if its largest magnitude or its root mean square is more than this many times
#: that of the median column. One Gaussian column in 10^7 does so by chance if columns have MIN_ROWS
#: elements, fewer if they are longer, and many if they are shorter.
STANDS_OUT = 4.0
MIN_ROWS = 4


@dataclass(frozen=True)
class ColumnMagnitude:
    """How large a column is.

    Attributes:
        absmax, rms: largest magnitude and root mean square of its finite elements.
        absmax_ratio, rms_ratio: these over those of the median column; infinite if only the median
            is 0, and 1 if both are 0.
    """

    column: int
    absmax: float
    rms: float
    absmax_ratio: float
    rms_ratio: float


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """Magnitudes of all columns of a tensor seen as a matrix, over their finite elements.

    Attributes:
        rows: how many elements a column has.
        absmax, rms: float64 `[columns]`; 0 for a column without finite elements.
        median_absmax, median_rms: over the columns; 0 if there are none.
    """

    rows: int
    absmax: Float64
    rms: Float64
    median_absmax: float
    median_rms: float

    def magnitude(self, column: int) -> ColumnMagnitude:
        """The numbers of one column."""
        absmax, rms = float(self.absmax[column]), float(self.rms[column])
        ratios = _ratio(absmax, self.median_absmax), _ratio(rms, self.median_rms)
        return ColumnMagnitude(column, absmax, rms, *ratios)

    def largest(self, count: int) -> tuple[ColumnMagnitude, ...]:
        """The columns of the largest absmax, and so of the largest ratio to the median's. Of
        columns with equal absmax the one of the larger rms comes first, then the one of the lower
        index."""
        order = np.lexsort((np.arange(self.absmax.size), -self.rms, -self.absmax))[:count]
        return tuple(self.magnitude(int(column)) for column in order)

    def standing_out(self, ratio: float = STANDS_OUT) -> tuple[ColumnMagnitude, ...]:
        """The columns whose absmax or rms is more than `ratio` times that of the median column, the
        largest absmax first.

        Empty if the median column is zero, because then most columns are zero and any other column
        would stand out. Empty for fewer than MIN_ROWS rows, because so short columns differ as
        single numbers do.
        """
        if not self.median_absmax or self.rows < MIN_ROWS:
            return ()
        beyond = (self.absmax > ratio * self.median_absmax) | (self.rms > ratio * self.median_rms)
        return tuple(c for c in self.largest(self.absmax.size) if beyond[c.column])


def threshold_ladder(columns: ColumnStatistics) -> tuple[float, ...]:
    """Thresholds worth trying, in descending order. No column reaches the first; an eighth of the
    columns reach the last, which costs about 1.5 bits per parameter beside 4-bit codes.

    The thresholds admit 1, 2, 3, 4, 6, 8, 12, 16, ... columns, and each is the shortest decimal
    that does so. Columns of equal magnitude are admitted together. Empty for a tensor of zeros.
    """
    absmax = np.sort(columns.absmax)[::-1].tolist()
    if not absmax or absmax[0] <= 0:
        return ()
    edges = [math.inf, *absmax, 0.0]
    # Between two columns of equal magnitude there is no threshold.
    possible = [n for n in range(1 + max(1, len(absmax) // 8)) if edges[n] > edges[n + 1]]
    counts, wanted = [0], 1
    for count in possible[1:]:
        if count >= wanted:
            counts.append(count)
            while wanted <= count:
                wanted += max(1, 1 << (wanted.bit_length() - 2)) if wanted > 1 else 1
    return tuple(_shortest(edges[n + 1], edges[n]) for n in counts)


def _shortest(above: float, up_to: float) -> float:
    """The number with the fewest digits in (above, up_to], compared as float32."""
    middle = math.sqrt(above * up_to) if math.isfinite(up_to) and above > 0 else above * 1.5
    middle = middle or up_to
    with np.errstate(over="ignore", under="ignore"):
        for digits in range(1, 10):
            rounded = float(f"{middle:.{digits}g}")
            if above < float(np.float32(rounded)) <= up_to:
                return rounded
    return up_to


class ColumnScan(Reducer[list[Any]]):
    """The magnitudes of all columns. It keeps three numbers for each column."""

    def begin(self, elements: Elements) -> None:
        self._rows, self._columns = elements.matrix
        self._absmax, self._squared = np.zeros(self._columns), np.zeros(self._columns)
        self._finite = np.full(self._columns, self._rows, np.int64)

    def take(self, segment: Segment) -> list[Any]:
        """Of rectangles: the columns, the largest magnitude of each, its sum of squares, and how
        many elements are not finite."""
        magnitude = np.abs(segment.values)
        missing = np.zeros(0, bool)
        if magnitude.size and not np.isfinite(magnitude.max()):
            missing = ~np.isfinite(magnitude)
            magnitude[missing] = 0
        arrays = (magnitude, missing) if missing.size else (magnitude,)
        return [
            (
                across,
                part.max(axis=0),
                np.einsum("ij,ij->j", part, part, dtype=np.float64),
                holes[0].sum(axis=0) if holes else 0,
            )
            for _, across, (part, *holes) in rectangles(segment.start, self._columns, *arrays)
        ]

    def add(self, part: list[Any]) -> None:
        for across, absmax, squared, missing in part:
            held = self._absmax[across]
            np.maximum(held, absmax, out=held)
            self._squared[across] += squared
            self._finite[across] -= missing

    def result(self) -> ColumnStatistics:
        rms = np.sqrt(self._squared / np.maximum(self._finite, 1))
        return ColumnStatistics(
            self._rows,
            self._absmax,
            rms,
            median_absmax=float(np.median(self._absmax)) if self._columns else 0.0,
            median_rms=float(np.median(rms)) if self._columns else 0.0,
        )


def _ratio(value: float, median: float) -> float:
    if median:
        return value / median
    return float("inf") if value else 1.0


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The kept columns of a matrix.

    Attributes:
        columns: int64 `[k]`, ascending.
        width: the number of columns of the matrix.
        threshold: the outlier threshold, in the unit of the tensor.
        by_element: whether scales leave out elements of at least the threshold instead of kept
            columns.
    """

    columns: Int64
    width: int
    threshold: np.float32
    by_element: bool

    def counted(self, values: Float32, start: int) -> Bool:
        """Which elements of a segment count for the scales, `[size]`. It begins at `start` of the
        flattened tensor."""
        limit = self.threshold if self.by_element else np.float32(np.inf)
        counted: Bool = np.abs(values) < limit  # neither NaN nor an infinity is
        if not self.by_element:
            self.fill(counted, start, False)
        return counted

    def fill(self, values: npt.NDArray[Any], start: int, value: float) -> None:
        """Replaces the kept elements by `value`."""
        for _, columns, (part,) in self._parts(start, values):
            part[:, columns] = value

    def keep(self, out: Float32, values: Float32, start: int) -> None:
        """Copies the kept elements of `values`, rounded to float16, to `out`."""
        for _, columns, (target, part) in self._parts(start, out, values):
            target[:, columns] = to_half(part[:, columns])

    def collect(self, kept: Float16, values: Float32, start: int) -> None:
        """Writes the kept elements of `values` to their places in `kept` float16 `[rows, k]`."""
        for where, columns, (part,) in self._parts(start, values):
            kept[where] = to_half(part[:, columns])

    def count_beyond(self, values: Float32, start: int) -> int:
        """How many kept elements are finite and beyond the largest float16."""
        return sum(
            int(np.count_nonzero(np.isfinite(kept) & (np.abs(kept) > _LARGEST_HALF)))
            for kept in (part[:, columns] for _, columns, (part,) in self._parts(start, values))
        )

    def _parts(
        self, start: int, *arrays: npt.NDArray[Any]
    ) -> Iterator[tuple[tuple[slice, slice], Int64, list[npt.NDArray[Any]]]]:
        """Rectangles of a segment that contain kept columns: (slices of rows and of `columns`, the
        positions of these columns in the rectangle, views of the arrays)."""
        for rows, across, views in rectangles(start, self.width, *arrays):
            low, high = map(int, np.searchsorted(self.columns, (across.start, across.stop)))
            if low < high:
                yield (rows, slice(low, high)), self.columns[low:high] - across.start, views


def to_half(values: Float32) -> Float16:
    """`values` rounded to the nearest float16. Finite values beyond 65504 become ±65504, infinities
    stay."""
    inside = np.where(np.isinf(values), values, np.clip(values, -_LARGEST_HALF, _LARGEST_HALF))
    return inside.astype(np.float16)


def decompose(
    granularity: Granularity | None, threshold: float, absmax: npt.NDArray[np.float64]
) -> Decomposition | None:
    """The kept columns of a tensor; None if there are none. `absmax` `[columns]` are the largest
    finite magnitudes of its columns."""
    with np.errstate(over="ignore"):  # beyond float32 no column is kept
        limit = np.float32(threshold)
    columns = np.flatnonzero(absmax >= limit).astype(np.int64)
    if not columns.size:
        return None
    by_element = isinstance(granularity, PerRow | PerToken)
    return Decomposition(columns, absmax.size, limit, by_element)
