"""LLM.int8() decomposition: columns with an outlier are kept in 16 bits, the rest is quantized.

Dettmers et al. 2022, arXiv:2208.07339. A column of the matrix is kept when a finite element of it
has at least the magnitude of the threshold; both are compared as float32. Its elements are
rounded to float16, and those beyond its largest number, 65504, become that; NaN and infinities
stay. They are taken out of what is quantized.

Which elements the scales of the others leave out:

- per row and token, where bitsandbytes defines it (`int8_vectorwise_quant`), every element of at
  least the threshold, and no other: the smaller elements of a kept column still count, although
  they are not quantized;
- elsewhere every element of a kept column.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.layout import rectangles
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.schemes.granularity import Granularity, PerRow, PerToken

Float16 = npt.NDArray[np.float16]
Int64 = npt.NDArray[np.int64]

_LARGEST_HALF = np.float32(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The columns of a matrix `width` wide that are kept: `columns` int64 `[k]`, ascending.

    `by_element`: whether scales leave out elements from `threshold` on, not kept columns.
    """

    columns: Int64
    width: int
    threshold: np.float32
    by_element: bool

    def inliers(self, values: Float32, start: int, left_out: float, scratch: Scratch) -> Float32:
        """A copy of elements from `start` of the flattened tensor on, with `left_out` for those
        that scales leave out and for those that are not finite; in scratch memory."""
        kept: Float32 = scratch.take("inliers", values.size, np.float32)
        np.copyto(kept, values)
        magnitude = np.abs(values, out=scratch.take("magnitude", values.size, np.float32))
        limit = self.threshold if self.by_element else np.float32(np.inf)
        # Neither NaN nor an infinity is below it.
        below = np.less(magnitude, limit, out=scratch.take("below", values.size, np.bool_))
        np.copyto(kept, np.float32(left_out), where=np.logical_not(below, out=below))
        if not self.by_element:
            self.fill(kept, start, left_out)
        return kept

    def fill(self, values: Float32, start: int, value: float) -> None:
        """Puts `value` in the place of the kept elements."""
        for _, columns, part in self._parts(values, start):
            part[:, columns] = value

    def keep(self, out: Float32, values: Float32, start: int) -> None:
        """Puts the kept elements of `values`, rounded to float16, into `out`."""
        for (_, columns, target), (_, _, part) in zip(
            self._parts(out, start), self._parts(values, start), strict=True
        ):
            target[:, columns] = to_half(part[:, columns])

    def collect(self, kept: Float16, values: Float32, start: int) -> None:
        """Writes the kept elements of `values` to their places in `kept` `[rows, k]`."""
        for (rows, numbers), columns, part in self._parts(values, start):
            kept[rows, numbers] = to_half(part[:, columns])

    def count_beyond(self, values: Float32, start: int) -> int:
        """Kept elements that are finite and beyond the largest float16."""
        return sum(
            int(np.count_nonzero(np.isfinite(kept) & (np.abs(kept) > _LARGEST_HALF)))
            for kept in (part[:, columns] for _, columns, part in self._parts(values, start))
        )

    def _parts(
        self, values: Float32, start: int
    ) -> Iterator[tuple[tuple[slice, slice], Int64, Float32]]:
        """Rectangles of a segment with a kept column: the rows and the indices of its kept columns,
        the positions of these within it, and the rectangle `[rows, columns]`."""
        for first, last, left, right in rectangles(start, values.size, self.width):
            low, high = np.searchsorted(self.columns, (left, right))
            if low == high:
                continue
            at = first * self.width + left - start
            part = values[at : at + (last - first) * (right - left)]
            where = slice(first, last), slice(int(low), int(high))
            yield where, self.columns[low:high] - left, part.reshape(last - first, right - left)


def to_half(values: Float32) -> Float16:
    """Rounded to the nearest float16; values beyond its largest number become that number,
    infinities stay."""
    inside = np.where(np.isinf(values), values, np.clip(values, -_LARGEST_HALF, _LARGEST_HALF))
    return inside.astype(np.float16)


def decompose(
    granularity: Granularity | None, threshold: float, absmax: npt.NDArray[np.float64]
) -> Decomposition | None:
    """The kept columns of a tensor whose columns have these largest finite magnitudes `[columns]`;
    None if there are none."""
    limit = np.float32(threshold)
    columns = np.flatnonzero(absmax >= limit).astype(np.int64)
    if not columns.size:
        return None
    by_element = isinstance(granularity, PerRow | PerToken)
    return Decomposition(columns, absmax.size, limit, by_element)
