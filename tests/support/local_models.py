"""Small models on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from qtui_core.errors import ModelError
from qtui_core.models import open_model


def save(path: Path, **tensors: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n.replace("__", "."): t for n, t in tensors.items()}, path)


def write_index(
    folder: Path, weight_map: object, name: str = "model.safetensors.index.json"
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(4, np.float16)


def refused(model: object, match: str) -> str:
    """The sentence with which a model is not opened."""
    with pytest.raises(ModelError, match=match) as caught:
        open_model(model)
    message = str(caught.value)
    assert message.isprintable()
    return message


def write_small(folder: Path) -> Path:
    """A small real checkpoint: matrices with planted outliers, a norm, a bias."""
    random = np.random.default_rng(7)
    folder.mkdir()
    up = random.normal(0, 0.02, (192, 128)).astype(np.float32)
    up[17, 5] = 0.9
    up[100, 5] = -0.8
    save_file(
        {
            "layers.0.up.weight": up,
            "layers.0.down.weight": random.normal(0, 0.05, (128, 192)).astype(np.float16),
            "layers.0.norm.weight": np.ones(128, np.float32),
            "layers.0.up.bias": np.zeros(192, np.float32),
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({"architectures": ["TestModel"]}))
    return folder
