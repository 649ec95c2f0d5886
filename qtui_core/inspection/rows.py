"""Reads what an inspection measures: a bounded sample, or everything chunk by chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from qtui_core.inspection.sample import RowSample, sample_rows
from qtui_core.models import ModelSource, TensorInfo, row_elements, rows_of
from qtui_core.models.files.arrays import RowReader

Rows = np.ndarray | RowReader

#: Concurrent requests to a hub: they wait on the network, not on this machine.
REMOTE_READS = 8


def open_rows(source: ModelSource, info: TensorInfo, limit: int | None) -> tuple[Rows, RowSample]:
    """The rows of a tensor to measure, and which rows these are.

    Without a limit it is a reader, which holds nothing in memory; with one, the sampled rows,
    float32 `[rows, columns]`.
    """
    sample = sample_rows(rows_of(info), row_elements(info), limit, strips=strips_of(source.origin))
    reader = RowReader(source, info.name)
    if limit is None:
        return reader, sample
    parts = [reader.rows(start, stop) for start, stop in sample.strips]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)), sample


def strips_of(origin: str) -> int:
    """The number of strips of a sample. Each strip costs a request if rows come from a hub, and
    nothing if they are local."""
    return 4 if origin == "hub" else 16


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
