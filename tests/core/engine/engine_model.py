"""A checkpoint with every kind of tensor, of which the engine is asked."""

from __future__ import annotations

import numpy as np

SHAPE = (96, 160)
PROJ = "layers.0.proj.weight"


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal(SHAPE).astype(np.float32) * np.float32(0.02)
    weight[:, 17] *= 30  # an outlier column
    weight[5, 90] = 1.5
    holes = weight.copy()
    holes[3, 4], holes[5, 6] = np.nan, np.inf
    loud = np.where(np.arange(64) == 9, 20, 1)
    return {
        PROJ: weight,
        "layers.0.norm.weight": rng.standard_normal(64).astype(np.float32),
        "layers.1.proj.weight": rng.standard_normal((40, 64)).astype(np.float16),
        "holes": holes,
        "vector": rng.standard_normal(640).astype(np.float32),
        "experts": rng.standard_normal((3, 8, 64)).astype(np.float32),
        "empty": np.empty((0, 8), np.float32),
        "scalar": np.array(2.5, np.float32),
        "zeros": np.zeros((8, 8), np.float32),
        "constant": np.full((8, 8), 0.3, np.float32),
        "counts": np.arange(12, dtype=np.int64).reshape(3, 4),
        "tokens": (rng.standard_normal((32, 64)) * loud).astype(np.float32),
    }
