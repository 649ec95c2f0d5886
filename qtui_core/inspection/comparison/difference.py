"""The difference of two matrices in one pass over both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.inspection.sample import Strip
from qtui_core.job import IDLE, Job
from qtui_core.models.files.arrays import Float32
from qtui_core.quant.elements import RowSource
from qtui_core.quant.measure import decibels

#: Elements of each matrix per decoded chunk.
_CHUNK = 1 << 19
#: Elements per sum, so that they stay in the cache. Below 10,000, OpenBLAS computes a product in
#: one thread; several threads cost far more when a core is busy.
_CACHED = 1 << 13


@dataclass
class Difference:
    """The difference of b from a: sums over pairs of elements, in float64. Those that are not
    finite in both count for nothing but `nonfinite` and `lost`.

    Attributes:
        count: elements read.
        nonfinite: elements that are NaN or infinite in a or in b.
        lost: nonfinite elements that are finite in a: b made them NaN or infinite.
        identical: whether all elements have the same 32 bits.
        error: of (b - a)²; `squared_a`, `squared_b` and `product` of a², b² and a·b; `shift` of
            b - a.
        max_abs_error: the largest |b - a|, first at `max_abs_error_index` (row, column); None if
            nothing was read.
    """

    count: int = 0
    nonfinite: int = 0
    lost: int = 0
    identical: bool = True
    error: float = 0.0
    squared_a: float = 0.0
    squared_b: float = 0.0
    product: float = 0.0
    shift: float = 0.0
    max_abs_error: float = 0.0
    max_abs_error_index: tuple[int, int] | None = None

    PRINTED = (
        "identical",
        "nonfinite",
        ("became_nonfinite", "lost"),
        "mse",
        "relative_mse",
        "sqnr_db",
        "max_abs_error",
        "max_abs_error_index",
        "mean_shift",
        "cosine",
    )

    @property
    def finite(self) -> int:
        return self.count - self.nonfinite

    @property
    def mean_square(self) -> float:
        """Of a."""
        return self.squared_a / (self.finite or 1)

    @property
    def mse(self) -> float:
        return self.error / (self.finite or 1)

    @property
    def relative_mse(self) -> float | None:
        """The mse over the mean square of a; None if a is zero."""
        return self.error / self.squared_a if self.squared_a else None

    @property
    def sqnr_db(self) -> float | None:
        return decibels(self.relative_mse)

    @property
    def mean_shift(self) -> float:
        return self.shift / (self.finite or 1)

    @property
    def cosine(self) -> float | None:
        """Of the angle between a and b; None if one of them is zero."""
        norms = math.sqrt(self.squared_a) * math.sqrt(self.squared_b)
        return max(-1.0, min(1.0, self.product / norms)) if norms else None


def sums(a: Float32, b: Float32, row: int = 0, into: Difference | None = None) -> Difference:
    """The sums over two matrices, float32 `[rows, columns]`, whose first row is number `row`; added
    to those of `into`."""
    running = Difference() if into is None else into
    columns = a.shape[1]
    flat_a, flat_b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    for start in range(0, flat_a.size, _CACHED):
        part_a, part_b = flat_a[start : start + _CACHED], flat_b[start : start + _CACHED]
        running.count += part_a.size
        if running.identical:
            running.identical = np.array_equal(part_a.view(np.uint32), part_b.view(np.uint32))
        x, y = part_a.astype(np.float64), part_b.astype(np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.all():
            running.nonfinite += int(finite.size - np.count_nonzero(finite))
            running.lost += int(np.count_nonzero(np.isfinite(x) & ~finite))
            x[~finite] = y[~finite] = 0.0
        error = y - x
        running.error += float(np.dot(error, error))
        running.squared_a += float(np.dot(x, x))
        running.squared_b += float(np.dot(y, y))
        running.product += float(np.dot(x, y))
        running.shift += float(error.sum())
        np.abs(error, out=error)
        index = int(error.argmax())
        if error[index] > running.max_abs_error or running.max_abs_error_index is None:
            running.max_abs_error = float(error[index])
            down, across = divmod(start + index, columns)
            running.max_abs_error_index = row + down, across
    return running


def difference(
    a: RowSource,
    b: RowSource,
    strips: Sequence[Strip],
    job: Job = IDLE,
    keep: list[Float32] | None = None,
) -> Difference:
    """The difference over the rows of `strips` of two matrices of one shape. `keep` gets the rows
    of a that are read.

    Takes about a megabyte, and what the decoders of a and b need for half a million elements.
    """
    total = sum(stop - start for start, stop in strips)
    running, done = Difference(), 0
    for first, last in _chunks(strips, a.shape[1]):
        rows = a.rows(first, last)
        if keep is not None:
            keep.append(rows)
        sums(rows, b.rows(first, last), first, running)
        done += last - first
        job.at(done, total)
    return running


def _chunks(strips: Sequence[Strip], columns: int) -> Iterator[Strip]:
    height = max(1, _CHUNK // max(1, columns))
    for start, stop in strips:
        for first in range(start, stop, height):
            yield first, min(stop, first + height)
