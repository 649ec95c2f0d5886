"""LLM.int8() decomposition: columns with an outlier are kept in 16 bits, the rest is quantized.

Dettmers et al. 2022, arXiv:2208.07339. A column of the matrix is kept if one of its finite elements
has at least the magnitude of the threshold; both are compared as float32. Kept elements are rounded
to float16, at most 65504 in magnitude; NaN and infinities stay. They are not quantized.

The scales of the other elements are computed without:

- for granularities row and token, as bitsandbytes does (`int8_vectorwise_quant`), all elements of
  at least the threshold. The smaller elements of a kept column count for the scale, although they
  are not quantized;
- for other granularities, all elements of kept columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.layout import Bool, Float32, rectangles
from qtui_core.schemes.granularity import Granularity, PerRow, PerToken

Float16 = npt.NDArray[np.float16]
Int64 = npt.NDArray[np.int64]

_LARGEST_HALF = np.float32(np.finfo(np.float16).max)


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
