"""Speed of quantization as ratios to the libraries, in one run on the same bytes.

    pytest -m bench tests/bench -s

Contenders take turns, so that whatever else the machine does hits all of them; the best
round of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from qtui_core.quant import Scheme, measure, quantize

torch = pytest.importorskip("torch")
functional = pytest.importorskip("bitsandbytes.functional")
primitives = pytest.importorskip("torchao.quantization.quant_primitives")

pytestmark = pytest.mark.bench

SHAPE = (4096, 4096)
NBYTES = 4 * SHAPE[0] * SHAPE[1]
ROUNDS = 5


def race(contenders: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Best seconds of each, taking turns, after one round that does not count."""
    best = dict.fromkeys(contenders, float("inf"))
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if turn:
                best[name] = min(best[name], seconds)
    return best


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32) * np.float32(0.02)


@pytest.fixture(scope="module")
def table():
    """Prints what was measured, once, at the end."""
    rows: list[tuple[str, float, str]] = []
    yield rows
    copy = next(seconds for name, seconds, _ in rows if name == "copy")
    print(f"\n\n{'4096 x 4096 float32':42} {'ms':>8} {'GB/s':>7} {'of copy':>8}  ratio")
    for name, seconds, ratio in rows:
        rate = NBYTES / seconds / 1e9
        print(f"{name:42} {1e3 * seconds:8.1f} {rate:7.2f} {copy / seconds:8.1%}  {ratio}")


@pytest.fixture(scope="module", autouse=True)
def copy_bandwidth(weights, table):
    out = np.empty_like(weights)
    best = race({"copy": lambda: np.copyto(out, weights)})
    table.append(("copy", best["copy"], "into a preallocated array"))


def record(table, best: dict[str, float], ours: str, theirs: str) -> float:
    ratio = best[theirs] / best[ours]
    for name, seconds in best.items():
        table.append((name, seconds, f"{best[theirs] / seconds:.2f}x {theirs}"))
    return ratio


def test_nf4_quantize(weights, table):
    flat = torch.from_numpy(weights).reshape(-1)
    scheme = Scheme.parse("nf4")
    best = race(
        {
            "bitsandbytes quantize_4bit": lambda: functional.quantize_4bit(flat, quant_type="nf4"),
            "nf4 quantize": lambda: quantize(weights, scheme),
            "nf4 quantize, one thread": lambda: quantize(weights, scheme, threads=1),
        }
    )
    packed, state = functional.quantize_4bit(flat, quant_type="nf4")
    for threads in (None, 1, 2):
        q = quantize(weights, scheme, threads=threads)
        assert np.array_equal(q.codes, packed.numpy())
        assert np.array_equal(q.scales, state.absmax.numpy())
    assert record(table, best, "nf4 quantize", "bitsandbytes quantize_4bit") >= 6


def test_nf4_dequantize(weights, table):
    flat = torch.from_numpy(weights).reshape(-1)
    packed, state = functional.quantize_4bit(flat, quant_type="nf4")
    q = quantize(weights, Scheme.parse("nf4"))
    ours = np.empty_like(weights)
    best = race(
        {
            "bitsandbytes dequantize_4bit": lambda: functional.dequantize_4bit(packed, state),
            "nf4 dequantize": lambda: q.dequantize(),
            "nf4 dequantize, given array": lambda: q.dequantize(out=ours),
            "nf4 dequantize, given array, one thread": lambda: q.dequantize(out=ours, threads=1),
        }
    )
    theirs = functional.dequantize_4bit(packed, state).numpy().reshape(SHAPE)
    assert np.array_equal(ours, theirs)
    assert np.array_equal(q.dequantize(threads=1), theirs)
    assert record(table, best, "nf4 dequantize", "bitsandbytes dequantize_4bit") >= 0.9


def test_int4_groups(weights, table):
    tensor = torch.from_numpy(weights)
    block = (1, 64)

    def theirs():
        scale, zero = primitives.choose_qparams_affine(
            tensor, primitives.MappingType.SYMMETRIC, block, torch.int8, -7, 7
        )
        return primitives.quantize_affine(tensor, block, scale, zero, torch.int8, -7, 7)

    scheme = Scheme.parse("int4:group64")
    best = race(
        {
            "torchao affine": theirs,
            "int4:group64 quantize": lambda: quantize(weights, scheme),
            "int4:group64 quantize, one thread": lambda: quantize(weights, scheme, threads=1),
        }
    )
    expected = theirs().numpy()
    for threads in (1, 2):
        assert np.array_equal(quantize(weights, scheme, threads=threads).codes, expected)
    assert record(table, best, "int4:group64 quantize", "torchao affine") >= 4


@pytest.mark.parametrize("text", ["nf4", "nf4:dq", "int4:group64", "int8:row", "e4m3", "bf16"])
def test_measuring_costs_little_more_than_quantizing(weights, table, text):
    scheme = Scheme.parse(text)
    best = race(
        {
            f"{text} quantize": lambda: quantize(weights, scheme),
            f"{text} measure": lambda: measure(weights, scheme),
        },
        rounds=3,
    )
    ratio = record(table, best, f"{text} measure", f"{text} quantize")
    assert ratio >= 1 / 2.5
