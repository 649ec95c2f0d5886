"""With one other core busy, no path is more than three times slower."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from racing import race

from qtui_core.quant import Scheme, measure, quantize

pytestmark = pytest.mark.bench

SHAPE = (4096, 4096)
LIMIT = 3.0


@contextmanager
def one_core_busy() -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a busy core needs another one beside it")
@pytest.mark.parametrize("text", ["nf4", "int4:group64", "int8:row", "e4m3", "bf16", "mxfp4"])
def test_a_busy_core_slows_no_path_much(text):
    x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    scheme = Scheme.parse(text)
    q = quantize(x, scheme)
    paths = {
        "quantize": lambda: quantize(x, scheme),
        "dequantize": lambda: q.dequantize(),
        "measure": lambda: measure(x, scheme),
    }
    alone = race(paths)
    with one_core_busy():
        beside = race(paths)
    print()
    for name in paths:
        print(f"{text} {name}: {1e3 * alone[name]:.1f} ms alone, "
              f"{beside[name] / alone[name]:.2f}x beside a busy core")  # fmt: skip
    assert max(beside[name] / alone[name] for name in paths) <= LIMIT
