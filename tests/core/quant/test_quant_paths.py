"""However a tensor is passed and cut into segments, the bytes are the same."""

import multiprocessing
import time
from collections import deque

import numpy as np
import pytest
from every import in_parts, left_out, over

from qtui_core.quant import Scheme, error_map, measure, quantize, statistics
from qtui_core.quant import elements as elements_module
from qtui_core.quant.elements import elements_of
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.plan import make_plan, prepare, round_trip
from qtui_core.quant.reading import Cancelled, map_segments

SCHEMES = [
    "nf4",
    "nf4:block33:dq",
    "nf4:dq",
    "fp4",
    "int4",
    "int4:group7",
    "int4:group50:asym",
    "int8:row",
    "int8:column:asym",
    "int3:tensor:signed",
    "int4:block33:full",
    "e4m3",
    "e4m3:group50",
    "e2m1",
    "bf16",
    "fp16",
    "tf32",
]
SHAPE = (150, 200)


class Rows:
    """A tensor that returns rows on request and records what was requested."""

    def __init__(self, array, shape=None):
        self.array, self.shape, self.asked = array, shape or array.shape, []

    def rows(self, start, stop):
        self.asked.append((start, stop))
        rows = self.array
        if rows.ndim > 1:
            rows = rows.reshape(-1, matrix_shape(self.shape)[1])
        return rows[start:stop].reshape(stop - start, -1).copy()


@pytest.fixture
def small_segments(monkeypatch):
    """Cuts small tensors into many segments, as large ones are."""
    monkeypatch.setattr(elements_module.Elements.segments, "__defaults__", (1, 1500))


def same(a, b):
    np.testing.assert_array_equal(a.codes, b.codes)
    np.testing.assert_array_equal(a.scales, b.scales)
    if a.zero_points is not None:
        np.testing.assert_array_equal(a.zero_points, b.zero_points)
    if a.nested is not None:
        np.testing.assert_array_equal(a.nested.codes, b.nested.codes)
        np.testing.assert_array_equal(a.nested.absmax, b.nested.absmax)
        assert a.nested.offset == b.nested.offset
    np.testing.assert_array_equal(a.dequantize(threads=1), b.dequantize(threads=2))


def tensor():
    x = np.random.default_rng(9).standard_normal(SHAPE).astype(np.float32)
    x[3, 4], x[140, 60], x[70, 1] = np.nan, np.inf, 40
    return x


@in_parts(3)
@over("text", SCHEMES)
def test_segments_and_threads_do_not_change_a_byte(text, monkeypatch, parts):
    """The default suite runs each scheme on one, two or three threads, the slow suite on all."""
    scheme, x = Scheme.parse(text), tensor()
    whole = quantize(x, scheme, threads=1)
    report = measure(x, scheme, threads=1)
    monkeypatch.setattr(elements_module.Elements.segments, "__defaults__", (1, 1500))
    assert len(list(elements_of(x).segments())) > 10
    for threads in (1, 2, 3):
        if left_out(parts, (text, SCHEMES), (threads, (1, 2, 3))):
            continue
        same(quantize(x, scheme, threads=threads), whole)
        cut = measure(x, scheme, threads=threads)
        assert cut.mse == pytest.approx(report.mse, rel=1e-6)
        assert cut.max_abs_error == report.max_abs_error
        assert cut.max_abs_error_index == report.max_abs_error_index
    assert measure(x, scheme, threads=1) == measure(x, scheme, threads=2)


@over("text", SCHEMES)
def test_readers_give_the_bytes_of_arrays(text, small_segments):
    scheme, x = Scheme.parse(text), tensor()
    same(quantize(Rows(x), scheme), quantize(x, scheme))
    a, b = measure(Rows(x), scheme), measure(x, scheme)
    assert a.mse == pytest.approx(b.mse, rel=1e-6)  # sums of other segments
    assert (a.max_abs_error, a.max_abs_error_index) == (b.max_abs_error, b.max_abs_error_index)
    cube = x.reshape(150, 10, 20)
    same(quantize(Rows(cube), scheme), quantize(cube, scheme))
    vector = np.ascontiguousarray(x.reshape(-1)[:2345])
    same(quantize(Rows(vector), scheme), quantize(vector, scheme))
    a, b = error_map(Rows(x), scheme, 7, 9), error_map(x, scheme, 7, 9)
    np.testing.assert_array_equal(a.cells, b.cells)
    np.testing.assert_array_equal(a.columns, b.columns)


@over("text", SCHEMES)
def test_round_trip_is_what_dequantize_gives(text):
    x = tensor()
    scheme = Scheme.parse(text)
    elements = elements_of(x)
    with np.errstate(all="ignore"):
        plan = make_plan(elements, scheme)
        (segment,) = elements.segments(plan.multiple)
        y = round_trip(plan, prepare(plan, segment))
    expected = quantize(x, scheme).dequantize().reshape(-1)
    finite = np.isfinite(x).reshape(-1)
    np.testing.assert_array_equal(y[finite], expected[finite])


def test_a_reader_is_asked_for_each_row_once_in_order():
    x = np.random.default_rng(0).standard_normal((20_000, 100)).astype(np.float32)
    reader = Rows(x)
    measure(reader, Scheme.parse("nf4:block48"))
    assert len(reader.asked) > 2
    assert reader.asked[0][0] == 0
    assert reader.asked[-1][1] == 20_000
    ends = [stop for _, stop in reader.asked[:-1]]
    assert ends == [start for start, _ in reader.asked[1:]]
    assert max(stop - start for start, stop in reader.asked) * 100 <= elements_module.SEGMENT


def test_a_reader_that_gives_too_little_is_an_error():
    x = np.ones((10, 10), np.float32)
    reader = Rows(x, shape=(20, 10))
    with pytest.raises(Exception, match="may have changed"):
        measure(reader, Scheme.parse("int8"))


@over("text", SCHEMES)
def test_memory_order_does_not_matter(text):
    scheme, x = Scheme.parse(text), tensor()
    same(quantize(np.asfortranarray(x), scheme), quantize(x, scheme))
    wide = np.repeat(x, 2, axis=1)
    same(quantize(wide[:, ::2], scheme), quantize(x, scheme))


def test_torch_tensors_of_every_float_type():
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    for text in SCHEMES:
        scheme = Scheme.parse(text)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            same(quantize(x.to(dtype), scheme), quantize(x.to(dtype).float().numpy(), scheme))
    scheme = Scheme.parse("int8")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
        same(quantize(x.to(dtype), scheme), quantize(x.to(dtype).float().numpy(), scheme))
    parameter = torch.nn.Parameter(x.t())
    same(quantize(parameter, scheme), quantize(x.t().contiguous().numpy(), scheme))
    assert statistics(x.to(torch.bfloat16)) == statistics(x.to(torch.bfloat16).float().numpy())


def test_the_tensor_is_not_written_to():
    x = tensor()
    before = x.copy()
    for text in SCHEMES:
        quantize(x, Scheme.parse(text))
        measure(x, Scheme.parse(text))
    np.testing.assert_array_equal(x, before)
    x.flags.writeable = False
    quantize(x, Scheme.parse("nf4"))


def test_dequantize_into_a_given_array():
    x = tensor()
    for text in ("nf4", "int4", "bf16"):
        q = quantize(x, Scheme.parse(text))
        out = np.full(SHAPE, 7, np.float32)
        assert q.dequantize(out=out).base is not None
        np.testing.assert_array_equal(out, q.dequantize())


def test_unpacked_codes():
    x = tensor()
    q = quantize(x, Scheme.parse("nf4"))
    codes = q.unpacked_codes
    assert codes.shape == SHAPE
    flat = codes.reshape(-1)
    np.testing.assert_array_equal(flat[::2] << 4 | flat[1::2], q.codes.reshape(-1))
    assert quantize(x[:1, :3], Scheme.parse("nf4")).unpacked_codes.shape == (1, 3)
    assert quantize(x, Scheme.parse("int4")).unpacked_codes.shape == SHAPE


def test_torch_is_not_imported_by_quantization():
    import subprocess
    import sys

    code = (
        "import sys, numpy as np; from qtui_core.quant import *; "
        "measure(np.ones((4, 64)), Scheme.parse('nf4')); "
        "sys.exit(any(m.split('.')[0] in ('torch', 'bitsandbytes', 'scipy') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_forked_child_has_threads_of_its_own():
    """The threads stay between tensors, and a fork copies none of them."""
    x = np.arange(1 << 20, dtype=np.float32)
    expected = quantize(x, Scheme.parse("int8"), threads=2)
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()

    def child() -> None:
        found.put(quantize(x, Scheme.parse("int8"), threads=2).codes)

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
    results = map_segments(work, segments, threads=3, cancelled=lambda: next(calls) == 6)
    with pytest.raises(Cancelled):
        deque(results)
    assert begun
    assert not working
