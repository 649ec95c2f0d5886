"""Reads what an inspection measures: a bounded sample, or everything chunk by chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from qtui_core.inspection.sample import RowSample, sample_rows, strips_of
from qtui_core.models import ModelSource, TensorInfo, row_elements, rows_of
from qtui_core.models.files.arrays import Float32, RowReader
from qtui_core.quant.elements import RowSource

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
    sample = sample_rows(rows_of(info), row_elements(info), limit, strips_of(source.origin))
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
