import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from every import in_parts, over
from scheme_table import EVERY_PAIR, EVERY_SCHEME
from shorthands import error_map, heard_by

from qtui_core.job import Job
from qtui_core.quant import (
    Cancelled,
    ErrorReport,
    Scheme,
    find_outliers,
    measure,
    quantize,
    statistics,
)
from qtui_core.quant.elements import SEGMENT


def test_one_large_exact_element_does_not_hide_the_tiny_errors():
    x = (np.random.default_rng(0).standard_normal((400, 400)) * 1e-20).astype(np.float32)
    x[0, 0] = 1
    report = measure(x, Scheme.parse("bf16"))
    error = x.astype(np.float64) - x.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert report.mse == pytest.approx(np.square(error).mean(), rel=1e-5, abs=0)


@in_parts(2)
@over("any_scheme", EVERY_SCHEME)
def test_report_against_plain_numpy(any_scheme, parts):
    """The default suite runs every pair of options, the slow suite every combination."""
    if parts > 1 and any_scheme not in EVERY_PAIR:
        return
    x = np.random.default_rng(1).standard_normal((40, 200)).astype(np.float32) * 0.02
    scheme = Scheme.parse(any_scheme)
    report = measure(x, scheme)
    y = quantize(x, scheme).dequantize().astype(np.float64)
    error = x - y
    assert isinstance(report, ErrorReport)
    assert report.scheme == scheme
    assert report.shape == (40, 200)
    assert (report.count, report.nonfinite, report.saturated) == (8000, 0, 0)
    assert report.mse == pytest.approx((error**2).mean(), rel=1e-5)
    relative = (error**2).sum() / (x.astype(np.float64) ** 2).sum()
    assert report.relative_mse == pytest.approx(relative, rel=1e-5)
    assert report.sqnr_db == pytest.approx(-10 * np.log10(relative), abs=1e-4)
    assert report.max_abs_error == pytest.approx(np.abs(error).max(), rel=1e-6)
    row, column = report.max_abs_error_index
    assert abs(error[row, column]) == pytest.approx(np.abs(error).max(), rel=1e-6)
    q = quantize(x, scheme)
    assert (report.bits_per_parameter, report.bytes) == (q.bits_per_parameter, q.nbytes)
    assert report.gaussian_mse == pytest.approx(
        report.gaussian_relative_mse * (x.astype(np.float64) ** 2).mean(), rel=1e-5
    )
    assert report.gaussian_sqnr_db == pytest.approx(
        -10 * np.log10(report.gaussian_relative_mse), rel=1e-9
    )


def test_no_error_and_no_signal_are_told_apart():
    exact = measure(np.ones((2, 64)), Scheme.parse("nf4"))
    assert (exact.relative_mse, exact.sqnr_db) == (0.0, None)
    zeros = measure(np.zeros((2, 64)), Scheme.parse("nf4"))
    assert (zeros.relative_mse, zeros.sqnr_db, zeros.gaussian_mse) == (None, None, None)
    empty = measure(np.empty((0, 64)), Scheme.parse("nf4"))
    assert (empty.count, empty.mse, empty.max_abs_error_index) == (0, 0.0, None)


def test_saturated_elements_of_casts_are_counted():
    x = np.array([[1.0, 70000.0, -1e9, 65504.0, np.inf]], np.float32)
    report = measure(x, Scheme.parse("fp16"))
    assert (report.saturated, report.nonfinite) == (2, 1)
    assert report.max_abs_error == pytest.approx(1e9 - 65504)
    assert measure(x, Scheme.parse("bf16")).saturated == 0
    assert measure(x, Scheme.parse("e5m2")).saturated == 0


def test_one_outlier_ruins_a_tensor_and_only_its_group():
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    clean = {t: measure(x, Scheme.parse(f"int4:{t}")).sqnr_db for t in ("tensor", "row", "group64")}
    x[3, 5] = 300
    spoiled = {t: measure(x, Scheme.parse(f"int4:{t}")) for t in clean}
    without = {
        name: np.delete((x - quantize(x, r.scheme).dequantize()).reshape(-1), 3 * 256 + 5)
        for name, r in spoiled.items()
    }
    noise = {name: float(np.square(error).mean()) for name, error in without.items()}
    assert noise["tensor"] > 0.9  # every other element rounds to zero
    assert noise["row"] < 0.05
    assert noise["group64"] < noise["row"]


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


@pytest.mark.parametrize("text", ["nf4:dq", "int4:group50:asym", "int8:column", "e4m3", "bf16"])
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", ["nf4", "nf4:dq", "int8:tensor"])
def test_progress_rises_to_one(text, threads):
    heard = []
    x = np.ones((20_000, 200), np.float32)
    measure(x, Scheme.parse(text), job=heard_by(heard, threads=threads))
    assert len(heard) > 5
    assert heard == sorted(heard)
    assert 0 < heard[0] < 0.5
    assert heard[-1] == 1.0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", ["nf4", "nf4:dq", "int8:tensor"])
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
