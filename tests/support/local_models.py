"""Small models on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


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
