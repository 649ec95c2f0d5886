"""Tensors that the tests of quantization share."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def awkward() -> dict[str, np.ndarray]:
    """Read-only tensors of unusual shapes and values, by what is unusual about them."""
    random = np.random.default_rng(11)
    normal = random.standard_normal((12, 70)).astype(np.float32)
    holes = normal.copy()
    holes[0, :3] = [np.nan, np.inf, -np.inf]
    holes[5] = np.nan
    tensors = {
        "no elements": np.empty((0, 8), np.float32),
        "no rows of several tiles": np.empty((0, 80), np.float32),
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
    for x in tensors.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    return tensors
