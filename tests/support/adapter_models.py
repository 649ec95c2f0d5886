"""Small adapters on disk, as peft writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

PREFIX = "base_model.model."


def dyadic(rng: np.random.Generator, *shape: int, step: float = 2.0**-10) -> np.ndarray:
    """Random multiples of `step`, whose products and sums float32 holds exactly."""
    return (rng.integers(-15, 16, shape) * step).astype(np.float32)


def write_adapter(
    folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any] | None = None
) -> Path:
    """An adapter with these tensors, by their names in the base, and LoRA's settings changed by
    `config`."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {f"{PREFIX}{name}": np.ascontiguousarray(values) for name, values in tensors.items()}
    save_file(stored, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | (config or {})))
    return folder


def lora(
    module: str, outputs: int, inputs: int, rank: int = 4, seed: int = 0
) -> dict[str, np.ndarray]:
    """Both halves of the update of a module."""
    rng = np.random.default_rng(seed)
    return {
        f"{module}.lora_A.weight": dyadic(rng, rank, inputs),
        f"{module}.lora_B.weight": dyadic(rng, outputs, rank),
    }
