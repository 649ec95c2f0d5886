"""Tensors and schemes that the tests of quantization share."""

from __future__ import annotations

import numpy as np
import pytest

INTEGERS = [f"int{bits}" for bits in range(2, 9)]
SMALL_FLOATS = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m0"]
CASTS = ["bf16", "fp16", "tf32"]
GRANULARITIES = ["model", "tensor", "row", "column", "group64", "group7", "block64", "block33"]
MORE_GRANULARITIES = ["token", "tile5x9", "tile4x100"]
OPTIONS = ["", ":asym", ":full", ":signed"]
MICROSCALING = ["mxfp4", "mxfp6-e3m2", "mxfp6-e2m3", "mxfp8-e4m3", "mxfp8-e5m2", "mxint8"]


def every_scheme() -> list[str]:
    """Text of a scheme for every format, option and granularity there is."""
    integers = [f"{n}:{g}{o}" for g in GRANULARITIES for n in INTEGERS for o in OPTIONS]
    return integers + every_other_scheme()


def every_pair() -> list[str]:
    """The same with fewer integers: every pair of a width, a granularity and an option is there,
    not every triple. For what is slow."""
    integers = [
        f"{name}:{granularity}{OPTIONS[(i + j) % len(OPTIONS)]}"
        for i, name in enumerate(INTEGERS)
        for j, granularity in enumerate(GRANULARITIES)
    ]
    return integers + every_other_scheme()


def every_other_scheme() -> list[str]:
    """But the integers in each granularity."""
    texts = list(CASTS)
    texts += [f"{name}:{granularity}" for granularity in GRANULARITIES for name in SMALL_FLOATS]
    for granularity in MORE_GRANULARITIES:
        texts += [f"{name}:{granularity}" for name in ("int2", "int8", "e4m3", "e3m0")]
        texts += [f"int4:{granularity}{option}" for option in OPTIONS]
    texts += [f"{name}{rule}" for name in MICROSCALING for rule in ("", ":ceil", ":even", ":rceil")]
    texts += ["nvfp4", "nf4:block64:dq64", "nf4:block33:dq100", "fp4:block64:dq1024"]
    texts += [f"ternary:{g}" for g in (*GRANULARITIES, *MORE_GRANULARITIES) if g != "model"]
    for size in (64, 33, 1024):
        for name in ("nf4", "fp4"):
            texts += [f"{name}:block{size}", f"{name}:block{size}:dq"]
    return texts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_scheme" in metafunc.fixturenames:
        metafunc.parametrize("any_scheme", every_scheme())
    if "any_pair" in metafunc.fixturenames:
        metafunc.parametrize("any_pair", every_pair())


@pytest.fixture
def awkward() -> dict[str, np.ndarray]:
    """Tensors that break careless code, by what is special about them."""
    random = np.random.default_rng(11)
    normal = random.standard_normal((12, 70)).astype(np.float32)
    holes = normal.copy()
    holes[0, :3] = [np.nan, np.inf, -np.inf]
    holes[5] = np.nan
    return {
        "no elements": np.empty((0, 8), np.float32),
        "no columns": np.empty((8, 0), np.float32),
        "scalar": np.float32(-3.25).reshape(()),
        "one element": np.array([[2.0]], np.float32),
        "vector": normal.reshape(-1)[:101].copy(),
        "one column": normal[:, :1].copy(),
        "three dimensions": normal.reshape(3, 4, 70),
        "four dimensions": normal.reshape(3, 4, 7, 10),
        "not contiguous": normal[:, ::2],
        "transposed": normal.T,
        "zeros": np.zeros((3, 70), np.float32),
        "zero rows": np.where(np.arange(12)[:, None] % 2, normal, 0).astype(np.float32),
        "constant": np.full((4, 70), -0.1, np.float32),
        "positive": np.abs(normal) + 1,
        "negative": -np.abs(normal) - 1,
        "nan and inf": holes,
        "only nan": np.full((3, 5), np.nan, np.float32),
        "subnormal": (normal * 1e-41).astype(np.float32),
        "tiny": (normal * 1e-37).astype(np.float32),
        "huge": np.clip(normal.astype(np.float64) * 1e38, -3.4e38, 3.4e38).astype(np.float32),
        "largest": np.array([[np.finfo(np.float32).max, -np.finfo(np.float32).max]], np.float32),
        "mixed magnitudes": normal * np.float32(10.0) ** random.integers(-30, 30, normal.shape),
        "float64": normal.astype(np.float64),
        "beyond float32": normal.astype(np.float64) * 1e300,
        "float16": normal.astype(np.float16),
        "integers": np.arange(-30, 40).reshape(7, 10),
        "booleans": normal > 0,
    }
