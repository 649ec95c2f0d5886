"""Reads what an inspection measures: a bounded sample of rows, evenly spread and the same on every
run, or everything chunk by chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.models import ModelSource, TensorInfo, row_elements, rows_of
from qtui_core.models.files.arrays import Float32, RowReader
from qtui_core.quant.elements import RowSource

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
        ends = [*accumulate(stop - start for start, stop in self.strips)]
        index = bisect_right(ends, position)
        return self.strips[index][1] - (ends[index] - position)


def sample_rows(rows: int, columns: int, limit: int | None, origin: str = "") -> RowSample:
    """About `limit` elements at most (at least one row), or every row if `limit` is None. A strip
    costs a request if rows come from a hub, and nothing if they are local."""
    wanted = rows if limit is None else max(1, limit // max(1, columns))
    if wanted >= rows:
        return RowSample(rows, ((0, rows),))
    strips = min(4 if origin == "hub" else 16, wanted)
    height = wanted // strips
    # The first strip starts at row 0 and the last ends at the last row.
    starts = [round(i * (rows - height) / max(1, strips - 1)) for i in range(strips)]
    return RowSample(rows, tuple((start, start + height) for start in starts))


Rows = np.ndarray | RowReader
#: Consecutive rows: the first, and the last + 1.
Strip = tuple[int, int]
#: Concurrent requests to a hub: they wait on the network, not on this machine.
REMOTE_READS = 8


def read_strips(rows: RowSource, strips: Sequence[Strip]) -> Float32:
    """The rows of all strips one after the other, float32 `[rows, columns]`."""
    parts = [rows.rows(*strip) for strip in strips]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def open_rows(source: ModelSource, info: TensorInfo, limit: int | None) -> tuple[Rows, RowSample]:
    """The rows of a tensor to measure, and which rows these are.

    Without a limit it is a reader, which holds nothing in memory; with one, the sampled rows,
    float32 `[rows, columns]`.
    """
    sample = sample_rows(rows_of(info), row_elements(info), limit, source.origin)
    reader = RowReader(source, info.name)
    return reader if limit is None else read_strips(reader, sample.strips), sample


def read_ahead(
    source: ModelSource, infos: Sequence[TensorInfo], limit: int | None
) -> Iterator[tuple[TensorInfo, Rows, RowSample]]:
    """`open_rows` of every tensor in order; samples on a hub are fetched several at a time."""
    if source.origin != "hub" or limit is None:
        for info in infos:
            yield info, *open_rows(source, info, limit)
        return
    with ThreadPoolExecutor(REMOTE_READS, thread_name_prefix="rows") as pool:
        waiting: deque[tuple[TensorInfo, Future[tuple[Rows, RowSample]]]] = deque()
        remaining = iter(infos)
        try:
            while True:
                while len(waiting) < 2 * REMOTE_READS and (coming := next(remaining, None)):
                    waiting.append((coming, pool.submit(open_rows, source, coming, limit)))
                if not waiting:
                    return
                info, future = waiting.popleft()
                yield info, *future.result()
        finally:
            for _, future in waiting:
                future.cancel()
