"""The difference of two matrices, in one pass over both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qtui_core.dataclass import dataclass
from qtui_core.packed.views import Rows
from qtui_core.quant.measure import decibels

#: Elements of each matrix per decoded chunk.
_CHUNK = 1 << 19
#: Elements per sum, so that they stay in the cache. Below 10,000, OpenBLAS computes a product in
#: one thread; several threads cost far more when a core is busy.
_CACHED = 1 << 13


@dataclass(frozen=True)
class Difference:
    """The difference of b from a, over the elements that were read and are finite in both.

    Attributes:
        count: elements read.
        nonfinite: elements that are NaN or infinite in a or in b; they are left out below.
        identical: whether all elements have the same 32 bits.
        mean_square: of a.
        mse: mean of (b - a)^2.
        relative_mse: mse over the mean square of a; None if a is zero.
        sqnr_db: -10 log10(relative_mse), decibels; None if relative_mse is None or 0.
        max_abs_error: the largest |b - a|, first at `max_abs_error_index` (row, column); None if
            nothing was read.
        mean_shift: mean of b - a.
        cosine: of the angle between a and b; None if one of them is zero.
        lost: nonfinite elements that are finite in a: b made them NaN or infinite.
    """

    count: int
    nonfinite: int
    identical: bool
    mean_square: float
    mse: float
    relative_mse: float | None
    sqnr_db: float | None
    max_abs_error: float
    max_abs_error_index: tuple[int, int] | None
    mean_shift: float
    cosine: float | None
    lost: int = 0

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


@dataclass
class _Sums:
    count: int = 0
    nonfinite: int = 0
    lost: int = 0
    identical: bool = True
    error: float = 0.0
    squared_a: float = 0.0
    squared_b: float = 0.0
    product: float = 0.0
    shift: float = 0.0
    largest: float = -1.0
    place: tuple[int, int] | None = None


def difference(
    a: Rows,
    b: Rows,
    strips: Sequence[tuple[int, int]],
    progress: Callable[[float], None] | None = None,
) -> Difference:
    """The difference over the rows of `strips`, (first, last + 1) pairs.

    Args:
        a, b: rows of the same shape.
        progress: called with the fraction done.

    Takes about a megabyte, and what the decoders of a and b need for half a million elements.
    """
    columns = a.shape[1]
    height = max(1, _CHUNK // max(1, columns))
    total = sum(stop - start for start, stop in strips)
    sums, done = _Sums(), 0
    for start, stop in strips:
        for first in range(start, stop, height):
            last = min(stop, first + height)
            _add(sums, a.rows(first, last), b.rows(first, last), first)
            done += last - first
            if progress:
                progress(done / total)
    finite = sums.count - sums.nonfinite
    relative = sums.error / sums.squared_a if sums.squared_a else None
    norms = math.sqrt(sums.squared_a) * math.sqrt(sums.squared_b)
    return Difference(
        count=sums.count,
        nonfinite=sums.nonfinite,
        identical=sums.identical,
        mean_square=sums.squared_a / finite if finite else 0.0,
        mse=sums.error / finite if finite else 0.0,
        relative_mse=relative,
        sqnr_db=decibels(relative),
        max_abs_error=max(0.0, sums.largest),
        max_abs_error_index=sums.place,
        mean_shift=sums.shift / finite if finite else 0.0,
        cosine=max(-1.0, min(1.0, sums.product / norms)) if norms else None,
        lost=sums.lost,
    )


def _add(sums: _Sums, a: NDArray[np.float32], b: NDArray[np.float32], row: int) -> None:
    columns = a.shape[1]
    flat_a, flat_b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    for start in range(0, flat_a.size, _CACHED):
        part_a, part_b = flat_a[start : start + _CACHED], flat_b[start : start + _CACHED]
        sums.count += part_a.size
        if sums.identical:
            sums.identical = np.array_equal(part_a.view(np.uint32), part_b.view(np.uint32))
        x, y = part_a.astype(np.float64), part_b.astype(np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.all():
            sums.nonfinite += int(finite.size - np.count_nonzero(finite))
            sums.lost += int(np.count_nonzero(np.isfinite(x) & ~finite))
            x[~finite] = y[~finite] = 0.0
        error = y - x
        sums.error += float(np.dot(error, error))
        sums.squared_a += float(np.dot(x, x))
        sums.squared_b += float(np.dot(y, y))
        sums.product += float(np.dot(x, y))
        sums.shift += float(error.sum())
        np.abs(error, out=error)
        index = int(error.argmax())
        if error[index] > sums.largest:
            sums.largest = float(error[index])
            place = start + index
            sums.place = (row + place // columns, place % columns)
