"""Columns that stand out from the others: input features of a layer whose values are far larger
than the rest, in its weight or in its input."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.quant.elements import Elements, Segment
from qtui_core.quant.layout import Float64, rectangles
from qtui_core.quant.reading import Reducer

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
        return ColumnMagnitude(
            column,
            absmax,
            rms,
            _ratio(absmax, self.median_absmax),
            _ratio(rms, self.median_rms),
        )

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
    absmax = np.unique(columns.absmax)[::-1]
    if not absmax.size or absmax[0] <= 0:
        return ()
    ladder = [_shortest(float(absmax[0]), math.inf)]
    wanted = 1
    for larger, smaller in pairwise([*absmax.tolist(), 0.0]):
        count = int(np.count_nonzero(columns.absmax >= larger))
        if count > max(1, columns.absmax.size // 8):
            break
        if count >= wanted:
            ladder.append(_shortest(smaller, larger))
            while wanted <= count:
                wanted += max(1, 1 << (wanted.bit_length() - 2)) if wanted > 1 else 1
    return tuple(ladder)


def _shortest(above: float, up_to: float) -> float:
    """The number with the fewest digits in (above, up_to], compared as float32."""
    middle = math.sqrt(above * up_to) if math.isfinite(up_to) and above > 0 else above * 1.5
    middle = middle or up_to
    with np.errstate(over="ignore", under="ignore"):
        for digits in range(1, 10):
            found = float(f"{middle:.{digits}g}")
            if above < float(np.float32(found)) <= up_to:
                return found
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
