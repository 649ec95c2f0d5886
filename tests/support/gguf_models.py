"""GGUF files, written by gguf's own writer in the layout of llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's converter."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


def write_gguf(
    path: Path,
    weights: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    kind: str = "Q8_0",
    architecture: str = "llama",
) -> Path:
    """Writes Hugging Face weights under GGUF names; matrices in blocks of `kind`, others in F32."""
    import gguf
    from gguf import GGMLQuantizationType, quants

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_embedding_length(config["hidden_size"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    arch = {name: a for a, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, weight in weights.items():
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if architecture == "llama" and "q_proj" in name:
            weight = permute(weight, config["num_attention_heads"])
        if architecture == "llama" and "k_proj" in name:
            weight = permute(weight, config["num_key_value_heads"])
        stored = GGMLQuantizationType[kind if weight.ndim > 1 else "F32"]
        data = quants.quantize(np.ascontiguousarray(weight), stored)
        writer.add_tensor(place or name, data, raw_dtype=stored)
    finish(writer)
    return path


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
