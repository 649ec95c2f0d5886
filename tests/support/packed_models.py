"""Quantized checkpoints on disk, packed as their formats are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

#: AutoAWQ: nibble i of a word is output AWQ_ORDER[i] of its eight.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def save_model(
    folder: Path,
    tensors: dict[str, np.ndarray],
    quantization: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Writes a folder with config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    contiguous = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    return folder


def put_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs columns of codes `[n, m]` into 32-bit words `[n·bits/32, m]`, one bit after the other,
    as AutoGPTQ's schedule for 3 bits does, too."""
    rows, columns = codes.shape
    words = np.zeros((-(-rows * bits // 32), columns), np.uint32)
    for place in range(rows * bits):
        bit = (codes[place // bits].astype(np.uint32) >> place % bits) & 1
        words[place // 32] |= bit << np.uint32(place % 32)
    return words.view(np.int32)


def gptq_layer(
    rng: np.random.Generator,
    out: int,
    inputs: int,
    bits: int,
    group: int,
    *,
    v2: bool = False,
    act_order: bool = False,
    symmetric: bool = False,
    with_index: bool = True,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(the weight float64 `[out, in]`, the tensors that store it)."""
    groups = -(-inputs // group)
    codes = rng.integers(0, 1 << bits, (inputs, out))
    zeros = np.full((groups, out), 1 << (bits - 1)) if symmetric else rng.integers(
        0, 1 << bits, (groups, out)
    )  # fmt: skip
    scales = (rng.random((groups, out)) * 0.01 + 0.001).astype(np.float16)
    index = np.arange(inputs) // group
    if act_order:
        index = rng.permutation(index)
    weight = scales.astype(np.float64)[index] * (codes - zeros[index])
    stored = zeros if v2 else (zeros - 1) % (1 << bits)
    tensors = {
        "qweight": put_bits(codes, bits),
        "qzeros": np.ascontiguousarray(put_bits(stored.T, bits).T),
        "scales": scales,
    }
    if with_index:
        tensors["g_idx"] = index.astype(np.int32)
    return weight.T, tensors


def awq_layer(
    rng: np.random.Generator, out: int, inputs: int, group: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(the weight float64 `[out, in]`, the tensors that store it)."""
    groups = inputs // group
    codes = rng.integers(0, 16, (inputs, out))
    zeros = rng.integers(0, 16, (groups, out))
    scales = (rng.random((groups, out)) * 0.01 + 0.001).astype(np.float16)
    index = np.arange(inputs) // group
    weight = scales.astype(np.float64)[index] * (codes - zeros[index])

    def pack(values: np.ndarray) -> np.ndarray:
        words = np.zeros((len(values), out // 8), np.uint32)
        for column in range(out // 8):
            for i, order in enumerate(AWQ_ORDER):
                words[:, column] |= values[:, 8 * column + order].astype(np.uint32) << np.uint32(
                    4 * i
                )
        return words.view(np.int32)

    return weight.T, {"qweight": pack(codes), "qzeros": pack(zeros), "scales": scales}


def in_nf4(state: dict[str, Any]) -> dict[str, Any]:
    """Weights of torch, with the projections in bitsandbytes' NF4 with nested scales."""
    from bitsandbytes.functional import quantize_4bit

    found = dict(state)
    for name in [name for name in state if "proj" in name]:
        found[name], packed = quantize_4bit(
            state[name], blocksize=64, compress_statistics=True, quant_type="nf4"
        )
        found |= {f"{name}.{key}": value for key, value in packed.as_dict(packed=True).items()}
    return found


def under(prefix: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
