"""A bounded sample of the rows of a tensor: evenly spread, and the same on every run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from qtui_core.dataclass import dataclass
from qtui_core.models import TensorInfo

#: Elements read of each tensor unless everything is asked for: a matrix up to 1024 x 1024 is read
#: whole. Fewer for remote models, whose rows must be transferred.
LOCAL_LIMIT = 1 << 20
REMOTE_LIMIT = 1 << 17
#: Elements read of all tensors together. A mixture of experts can have 45,000 matrices, of which
#: the limits above would read 48 billion elements; no dense model of today reaches a total.
LOCAL_TOTAL = 1 << 32
REMOTE_TOTAL = 1 << 29
#: What a tensor keeps of its limit at least.
LEAST_LIMIT = 1 << 14


def limit_of(origin: str, infos: Iterable[TensorInfo], *, full: bool) -> int | None:
    """How many elements are read of each of the tensors `infos` of a model of that origin; None for
    all."""
    if full:
        return None
    limit, total = LOCAL_LIMIT, LOCAL_TOTAL
    if origin == "hub":
        limit, total = REMOTE_LIMIT, REMOTE_TOTAL
    sizes = [info.elements for info in infos if info.readable]
    while limit > LEAST_LIMIT and sum(min(size, limit) for size in sizes) > total:
        limit //= 2
    return limit


@dataclass(frozen=True)
class RowSample:
    """Strips of consecutive rows of a tensor with `rows` rows, as (first, last + 1) pairs in order.
    Whole rows keep the scales of rows and groups exact; consecutive rows keep the blocks of a
    flattened tensor mostly intact."""

    rows: int
    strips: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        return sum(stop - start for start, stop in self.strips)

    @property
    def is_whole(self) -> bool:
        return self.count == self.rows

    def original_row(self, position: int) -> int:
        """The row of the tensor that is row `position` of the sample."""
        ends = []
        total = 0
        for start, stop in self.strips:
            total += stop - start
            ends.append(total)
        index = bisect_right(ends, position)
        start, stop = self.strips[index]
        return stop - (ends[index] - position)


def strips_of(origin: str) -> int:
    """The number of strips of a sample. Each strip costs a request if rows come from a hub, and
    nothing if they are local."""
    return 4 if origin == "hub" else 16


def sample_rows(rows: int, columns: int, limit: int | None, strips: int = 16) -> RowSample:
    """About `limit` elements at most (at least one row) in `strips` strips, or every row if `limit`
    is None."""
    wanted = rows if limit is None else max(1, limit // max(1, columns))
    if wanted >= rows:
        return RowSample(rows, ((0, rows),))
    strips = min(strips, wanted)
    height = wanted // strips
    # The first strip starts at row 0 and the last ends at the last row.
    starts = [round(i * (rows - height) / max(1, strips - 1)) for i in range(strips)]
    return RowSample(rows, tuple((start, start + height) for start in starts))
