"""What is fuzzed of quantized checkpoints: a folder for each way to pack weights, as one object of
JSON with its config, its tensors and what bitsandbytes says of its codes; and a GGUF file of each
type of blocks."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from mutations import Target, as_json, file_of, folder
from own_files import write

from qtui.report.inspection.document import inspection_document
from qtui_core.errors import QtuiError
from qtui_core.inspection.inspect import inspect_model
from qtui_core.models import open_model
from qtui_core.models.files.gguf import GGML_TYPES
from qtui_core.models.files.local import load_object
from qtui_core.models.tensors import DTYPE_BITS
from qtui_core.packed.weights import logical_weights, open_weight
from qtui_core.schemes.scheme import Scheme

#: Tensors with more bytes have none in the file.
MOST_BYTES = 1 << 16
NOISE = np.random.default_rng(0).bytes(MOST_BYTES)
M = "model.layers.0.mlp.up_proj"
STATE = {
    "quant_type": "nf4", "blocksize": 64, "shape": [8, 64], "dtype": "float16",
    "nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32",
}  # fmt: skip


def _group(**arguments: Any) -> dict[str, Any]:
    groups = {"g": {"targets": ["Linear", "re:.*_proj$"], "weights": arguments}}
    return {"quant_method": "compressed-tensors", "format": "a", "config_groups": groups}


#: The settings of the config, and the tensors of a weight: type, shape and, of some, its numbers.
KINDS: tuple[tuple[dict[str, Any], dict[str, list[Any]]], ...] = (
    ({"quant_method": "bitsandbytes", "load_in_4bit": True},
     {"weight": ["U8", [256, 1]], "weight.absmax": ["U8", [8]],
      "weight.quant_map": ["F32", [16]], "weight.nested_absmax": ["F32", [1]],
      "weight.nested_quant_map": ["F32", [256]],
      "weight.quant_state.bitsandbytes__nf4": ["U8", [0]]}),
    ({"load_in_8bit": True}, {"weight": ["I8", [8, 64]], "SCB": ["F32", [8]]}),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
     {"qweight": ["I32", [8, 32]], "qzeros": ["I32", [2, 4]], "scales": ["F16", [2, 32]],
      "g_idx": ["I32", [64], [0, 1] * 32]}),
    ({"quant_method": "gptq", "bits": 3, "sym": False},
     {"qweight": ["I32", [6, 32]], "qzeros": ["I32", [2, 3]], "scales": ["F16", [2, 32]]}),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 32},
     {"qweight": ["I32", [64, 4]], "qzeros": ["I32", [2, 4]], "scales": ["F16", [2, 32]]}),
    (_group(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True),
     {"weight_packed": ["I32", [8, 8]], "weight_scale": ["F32", [8, 2]],
      "weight_shape": ["I64", [2], [8, 64]]}),
    (_group(num_bits=8, type="float", strategy="block", block_structure=[8, 8]),
     {"weight": ["F8_E4M3", [8, 64]], "weight_scale": ["BF16", [1, 8]]}),
    (_group(num_bits=8, type="int", strategy="channel", symmetric=False),
     {"weight": ["I8", [8, 64]], "weight_scale": ["F32", [8, 1]],
      "weight_zero_point": ["I8", [8, 1]]}),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]},
     {"weight": ["F8_E4M3", [8, 64]], "weight_scale_inv": ["F32", [1, 1]]}),
    ({"quant_method": "modelopt"},
     {"weight": ["U8", [8, 32]], "weight_scale": ["F8_E4M3", [8, 4]],
      "weight_scale_2": ["F32", []]}),
    ({"quant_method": "mxfp4"},
     {"w_blocks": ["U8", [3, 4, 2, 16]], "w_scales": ["U8", [3, 4, 2]]}),
)  # fmt: skip


def _seeds() -> Sequence[bytes]:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1}
    return as_json(*(
        {"config": {**config, "quantization_config": settings},
         "tensors": {f"{M}.{name}": tensor for name, tensor in tensors.items()}, "state": STATE}
        for settings, tensors in KINDS
    ))  # fmt: skip


def _bytes_of(name: str, dtype: Any, shape: Any, numbers: Any, state: bytes) -> bytes:
    if "quant_state" in name:
        return state
    if isinstance(numbers, list) and all(isinstance(n, int) for n in numbers):
        wide = "q" if dtype == "I64" else "i"
        return b"".join(struct.pack(f"<{wide}", n % 2**31) for n in numbers)
    sizes = shape if isinstance(shape, list) else [shape]
    whole = all(isinstance(n, int) and 0 <= n < MOST_BYTES for n in sizes)
    bits = math.prod(sizes) * DTYPE_BITS.get(str(dtype), 8) if whole else 0
    return NOISE[: bits // 8] if bits // 8 <= MOST_BYTES else b""


def take(raw: bytes) -> None:
    found = load_object(raw, "The input", unique=False)
    state = json.dumps(found.get("state")).encode()
    header, data = {}, b""
    tensors = found.get("tensors")
    for name, tensor in tensors.items() if isinstance(tensors, dict) else ():
        given = tensor if isinstance(tensor, list) else []
        dtype, shape, numbers = [*given, None, None, None][:3]
        content = _bytes_of(name, dtype, shape, numbers, state)
        shape = [len(content)] if "quant_state" in name else shape
        ends = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": ends}
        data += content
    text = json.dumps(header).encode()
    place = folder() / "packed"
    place.mkdir(exist_ok=True)
    (place / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (place / "config.json").write_text(json.dumps(found.get("config")))
    take_weights(place)


def take_weights(path: Path) -> None:
    """Every weight, unpacked whole, and the report."""
    with open_model(path) as source:
        for weight in logical_weights(source).values():
            try:
                reader = open_weight(source, weight)
                reader.rows(0, reader.shape[0])
            except QtuiError:
                continue
        inspection = inspect_model(source, (Scheme.parse("int8:row"),))
        write(inspection_document(inspection, all_tensors=True))


def _gguf_seeds() -> Sequence[bytes]:
    path = folder() / "blocks.gguf"
    found = []
    for kind, ggml in GGML_TYPES.items():
        if ggml.name not in GGMLQuantizationType.__members__:
            continue
        writer = GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_embedding_length(256)
        writer.add_feed_forward_length(2)
        writer.add_head_count(2)
        writer.add_head_count_kv(2)
        for name in ("blk.0.ffn_up.weight", "token_embd.weight"):
            blocks = np.frombuffer(NOISE, np.uint8, 2 * 256 // ggml.block * ggml.nbytes)
            writer.add_tensor(name, blocks.reshape(2, -1), raw_dtype=GGMLQuantizationType(kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found.append(path.read_bytes())
    return found


PACKED = Target(_seeds, take)
BLOCKS = Target(_gguf_seeds, lambda raw: take_weights(file_of(raw, "input.gguf")), json=False)
