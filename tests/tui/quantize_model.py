"""A small model on disk for the tests of the Quantize panel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SHAPE = (96, 160)
PROJ = "model.layers.0.mlp.down_proj.weight"


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    weight = (rng.standard_normal(SHAPE) * 0.02).astype(np.float32)
    weight[:, 17] *= 30  # an outlier column
    holes = weight.copy()
    holes[3, 4], holes[5, 6] = np.nan, -np.inf
    return {
        "model.embed_tokens.weight": rng.standard_normal((64, 96)).astype(np.float16),
        PROJ: weight,
        "model.layers.0.norm.weight": rng.standard_normal(96).astype(np.float32),
        "model.layers.1.mlp.down_proj.weight": rng.standard_normal(SHAPE).astype(np.float32),
        "model.layers.1.mlp.up_proj.weight": rng.standard_normal((40, 64)).astype(np.float32),
        "odd.empty": np.empty((0, 8), np.float32),
        "odd.holes": holes,
        "odd.scalar": np.array(2.5, np.float32),
        "odd.zeros": np.zeros((8, 8), np.float32),
    }


def write_model(folder: Path) -> str:
    """The model as a folder; what `qtui MODEL` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return str(folder)
