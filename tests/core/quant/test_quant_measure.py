"""Passes over tensors that do not fit in memory: their memory, progress, cancelling and threads."""

import multiprocessing
import time
import tracemalloc
from collections import deque

import ml_dtypes
import numpy as np
import pytest
from every import over
from shorthands import Rows, error_map, heard_by

from qtui_core.job import Job
from qtui_core.quant import Cancelled, Scheme, find_outliers, measure, quantize, statistics
from qtui_core.quant.elements import SEGMENT, elements_of
from qtui_core.quant.reading import map_segments


def test_one_large_exact_element_does_not_hide_the_tiny_errors():
    x = (np.random.default_rng(0).standard_normal((400, 400)) * 1e-20).astype(np.float32)
    x[0, 0] = 1
    report = measure(x, Scheme.parse("bf16"))
    error = x.astype(np.float64) - x.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert report.mse == pytest.approx(np.square(error).mean(), rel=1e-5, abs=0)


def test_saturated_elements_of_casts_are_counted():
    x = np.array([[1.0, 70000.0, -1e9, 65504.0, np.inf]], np.float32)
    report = measure(x, Scheme.parse("fp16"))
    assert (report.saturated, report.nonfinite) == (2, 1)
    assert report.max_abs_error == pytest.approx(1e9 - 65504)
    assert measure(x, Scheme.parse("bf16")).saturated == 0
    assert measure(x, Scheme.parse("e5m2")).saturated == 0


class Generated:
    """A tensor too large for memory, generated a few rows at a time."""

    def __init__(self, rows, columns):
        self.shape = (rows, columns)
        self.pattern = np.random.default_rng(0).standard_normal(columns).astype(np.float32)
        self.largest = 0

    def rows(self, start, stop):
        self.largest = max(self.largest, stop - start)
        factor = 1 + (np.arange(start, stop) % 7).astype(np.float32)
        return factor[:, None] * self.pattern


@over("text", ["nf4:dq", "int4:group50:asym", "int8:column", "e4m3", "bf16"])
def test_memory_is_bounded_by_segments(text):
    reader = Generated(40_000, 1000)  # 160 MB of float32
    tracemalloc.start()
    report = measure(reader, Scheme.parse(text))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.count == 40_000_000
    assert reader.largest * 1000 <= SEGMENT
    assert peak < 20 * 4 * SEGMENT  # a quarter of the tensor, whatever its size
    small = measure(reader.rows(0, 7000), Scheme.parse(text))  # the pattern repeats
    assert report.relative_mse == pytest.approx(small.relative_mse, rel=2e-2)


@over("threads", [1, 2])
@over("text", ["nf4", "nf4:dq", "int8:tensor"])
def test_progress_rises_to_one(text, threads):
    heard = []
    x = np.ones((20_000, 200), np.float32)
    measure(x, Scheme.parse(text), job=heard_by(heard, threads=threads))
    assert len(heard) > 5
    assert heard == sorted(heard)
    assert 0 < heard[0] < 0.5
    assert heard[-1] == 1.0


@over("threads", [1, 2])
@over("text", ["nf4", "nf4:dq", "int8:tensor"])
def test_cancelling_stops_soon(text, threads):
    reader = Generated(200_000, 1000)  # large: threads of a busy machine are some pieces ahead
    heard = []

    def cancelled():
        return len(heard) >= 3

    job = heard_by(heard, cancelled=cancelled, threads=threads)
    with pytest.raises(Cancelled):
        measure(reader, Scheme.parse(text), job=job)
    assert heard[-1] < 0.1
    stopped = Job(cancelled=lambda: True, threads=threads)
    for verb in (statistics, find_outliers):
        with pytest.raises(Cancelled):
            verb(reader, job=stopped)
    with pytest.raises(Cancelled):
        error_map(reader, Scheme.parse(text), 4, 4, job=stopped)


def test_errors_of_a_reader_come_through_from_threads():
    class Broken(Generated):
        def rows(self, start, stop):
            if start > 2000:
                raise OSError("the disk went away")
            return super().rows(start, stop)

    for threads in (1, 2):
        with pytest.raises(OSError, match="went away"):
            measure(Broken(40_000, 1000), Scheme.parse("nf4"), job=Job(threads=threads))


def test_of_two_equal_errors_the_first_is_told():
    x = np.zeros(2 * SEGMENT, np.float32)
    x[[0, 5, -7]] = 7, 0.25, 0.25
    assert measure(x, Scheme.parse("int4:tensor")).max_abs_error_index == (0, 5)


def test_a_reader_is_asked_for_each_row_once_in_order():
    x = np.random.default_rng(0).standard_normal((20_000, 100)).astype(np.float32)
    reader = Rows(x)
    measure(reader, Scheme.parse("nf4:block48"))
    assert len(reader.asked) > 2
    assert reader.asked[0][0] == 0
    assert reader.asked[-1][1] == 20_000
    ends = [stop for _, stop in reader.asked[:-1]]
    assert ends == [start for start, _ in reader.asked[1:]]
    assert max(stop - start for start, stop in reader.asked) * 100 <= SEGMENT


def test_a_reader_that_gives_too_little_is_an_error():
    x = np.ones((10, 10), np.float32)
    reader = Rows(x, shape=(20, 10))
    with pytest.raises(Exception, match="may have changed"):
        measure(reader, Scheme.parse("int8"))


def test_dequantize_into_a_given_array():
    x = np.random.default_rng(9).standard_normal((150, 200)).astype(np.float32)
    for text in ("nf4", "int4", "bf16"):
        q = quantize(x, Scheme.parse(text))
        out = np.full(x.shape, 7, np.float32)
        assert q.dequantize(out=out).base is not None
        np.testing.assert_array_equal(out, q.dequantize())


def test_a_forked_child_has_threads_of_its_own():
    """The threads stay between tensors, and a fork copies none of them."""
    x = np.arange(1 << 20, dtype=np.float32)
    expected = quantize(x, Scheme.parse("int8"), job=Job(threads=2))
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()

    def child() -> None:
        found.put(quantize(x, Scheme.parse("int8"), job=Job(threads=2)).codes)

    process = context.Process(target=child)
    process.start()
    codes = found.get() if found._reader.poll(60) else None
    process.kill() if codes is None else process.join()
    assert np.array_equal(codes, expected.codes)


def test_no_segment_is_at_work_after_a_cancel():
    """Else a thread would write to arrays that the caller uses again."""
    begun, working = [], []

    def work(segment):
        begun.append(segment.start)
        working.append(segment.start)
        time.sleep(0.01)
        working.remove(segment.start)

    calls = iter(range(100))
    segments = elements_of(np.zeros(1 << 12, np.float32)).segments(1, 1 << 8)
    results = map_segments(
        work, segments, 1 << 12, Job(cancelled=lambda: next(calls) == 6, threads=3)
    )
    with pytest.raises(Cancelled):
        deque(results)
    assert begun
    assert not working
