"""However a tensor is passed and cut into segments, the bytes are the same."""

import multiprocessing
import time
from collections import deque

import numpy as np
import pytest
from every import over
from shorthands import Rows

from qtui_core.job import Cancelled, Job
from qtui_core.quant import Scheme, measure, quantize, statistics
from qtui_core.quant import elements as elements_module
from qtui_core.quant.elements import elements_of
from qtui_core.quant.reading import map_segments

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
