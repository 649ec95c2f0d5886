"""What is fuzzed: each door by which text or bytes of others come in."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from mutations import Target, as_json, file_of, folder
from own_files import OWN_FILES, PLAN, small_config, small_shape, write
from packed_files import BLOCKS, KINDS, PACKED
from safetensors.numpy import save_file

from qtui.engine.answers import activations, codes, outliers, pictures, tensors
from qtui.engine.client import Reply
from qtui.engine.operations import build_operations
from qtui.engine.protocol import Event, encode_event, parse_request, read_event
from qtui.engine.requests import EvaluationRequest
from qtui.engine.task import Task
from qtui.report.inspection.document import inspection_document
from qtui.tui.config import load_config
from qtui.tui.state import read_state
from qtui.tui.wire.key_parser import KeyParser
from qtui_core.codec import CodecError, from_plain
from qtui_core.inspection.adapters.reading import read_adapter
from qtui_core.inspection.inspect import inspect_model
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.models import ModelSource, TensorInfo, open_model
from qtui_core.models.files import gguf, layout
from qtui_core.models.files.local import load_object
from qtui_core.models.opening import AdapterSource
from qtui_core.schemes.scheme import Scheme

TESTS = Path(__file__).parent.parent
MOST_LAYERS = 500
HEADER = {
    "__metadata__": {"format": "pt"},
    "m.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
    "m.bias": {"dtype": "F32", "shape": [3], "data_offsets": [12, 24]},
    "m.weight_scale": {"dtype": "F8_E4M3", "shape": [], "data_offsets": [24, 25]},
}
SCHEMES = (
    "int8", "int4:group64", "nf4:block64:dq", "e4m3:row", "int4:group32:asym", "mxfp4", "nvfp4",
    "int8:outliers6.0", "int4:asym:zpfloat", "int8:column", "e5m2:tile128x128",
)  # fmt: skip


def _of_header(text: bytes, data: bytes = bytes(25)) -> bytes:
    return struct.pack("<Q", len(text)) + text + data


@cache
def configs() -> Sequence[bytes]:
    found = [path.read_bytes() for path in sorted((TESTS / "memory" / "configs").glob("*.json"))]
    plain = small_config()
    listed = {"modules_to_not_convert": ["lm_head", "layers.0"], "lm_head": True}
    settings = [{**kind, **listed} for kind, _ in KINDS] + [
        {"quant_method": "gptq", "bits": 4, "group_size": 32,
         "dynamic": {"-:.*o_proj": {}, "+:.*up_proj": {"bits": 8, "group_size": 64}}},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.0.*"]},
    ]  # fmt: skip
    return [*found, *as_json(*({**plain, "quantization_config": each} for each in settings))]


def take_estimate(raw: bytes) -> None:
    shape = shape_from_config(load_object(raw, "config.json", unique=False))
    # What is known to be too slow: an estimate walks each layer, so that thousands take minutes.
    if len(shape.layers) <= MOST_LAYERS:
        estimate(shape, PLAN, allocator=False)


def take_gguf(raw: bytes) -> None:
    header = gguf.read_gguf_header(file_of(raw), "f.gguf")
    named = {tensor.name: tensor for tensor in header.tensors}
    gguf.describe_gguf(named)
    shape_from_config(gguf.config_of(header.metadata, named))


def take_plan(raw: bytes) -> None:
    plan = from_plain(RunPlan, load_object(raw, "The plan", unique=False))
    estimate(small_shape(), plan, allocator=False)


CONFIGURATION = b"""theme = "qtui-light"
color = "256"
ascii = false
start_panel = "formats"
threads = 4
[keys]
"app.quit" = "q,ctrl+q"
"""
STATE = {
    "version": 1, "panel": "memory", "views": {"memory": "Curve"}, "theme": "", "model": "demo",
    "plan": {"batch": 4, "lora_targets": ["q_proj"]}, "gpu": {"index": 0}, "recents": ["a/b"],
}  # fmt: skip

#: What the engine answers, all with one session, as in its process.
OPERATIONS = build_operations()
DEMO_TENSOR = "model.layers.0.self_attn.q_proj.weight"
TENSOR = {"model": "demo", "tensor": "a", "source": "weight"}
VIEW = {"scheme": "int4", "schemes": ["int4", "int8:row"], "rows": 4, "columns": 5, "bins": 9}
MORE = {
    "inject": {"column": 1, "value": 2.5, "row": None}, "shape": [3, 4], "window": [0, 1, 2, 3],
    "tensors": ["a"], "row": 1, "column": 2, "tries": 3, "by": "kl", "limit": 6.0,
    "settings": {"schemes": ["int4"], "text": None, "windows": 2},
}  # fmt: skip


def take_operation(raw: bytes) -> None:
    """As `qtui.engine.worker` answers it, but in this thread."""
    request = parse_request(raw)
    operation = OPERATIONS.get(request.method)
    if operation is not None:
        asked = operation.read(request.method, request.params)
        if isinstance(asked, EvaluationRequest) and (asked.settings.windows or 2) > 1:
            # A user who asks for more windows waits for them.
            asked = replace(asked, settings=replace(asked.settings, windows=1))
        task = Task(request.id, request.method, asked, lambda *_: None)
        encode_event(Event("result", request.id, operation.run(task)))


def _operation_seeds() -> Sequence[bytes]:
    random = np.random.default_rng(0)
    weight = random.standard_normal((24, 64), dtype=np.float32)
    tensors = {
        "weight": weight, "half": weight.astype(np.float16), "zeros": np.zeros((2, 3), np.float32),
        "odd": np.array([np.nan, np.inf, -np.inf, 1e-42, -0.0, 3e38], np.float32).reshape(2, 3),
        "one": np.ones((1, 1), np.float32), "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(2, np.float32), "whole": np.arange(12, dtype=np.int8).reshape(3, 4),
        "convolution": random.standard_normal((2, 3, 4), dtype=np.float32),
    }  # fmt: skip
    path = folder() / "odd.safetensors"
    save_file(tensors, path)
    small = {"model": str(path), **VIEW, **MORE, "inject": None, "tensors": ["half"]}
    reading = {
        "model": "demo", "tensor": DEMO_TENSOR, "tensors": [DEMO_TENSOR], "prompt": "One day " * 20,
        "schemes": ["int4"], "scheme": "int4", "by": "fisher", "source": "input", "active": 0,
        "settings": {"schemes": ["int4"], "text": None, "windows": 1, "window": 16},
    }  # fmt: skip
    # A module is captured before something is asked about it.
    of_model = {"capture": 0, "activation_ranges": 1, "output_error": 1}
    of_model |= {"prediction_errors": 2, "evaluate": 2, "evaluation_so_far": 2}
    return [
        *as_json(*(
            {"id": 1, "method": name, "params": {**small, "tensor": tensor}}
            for name in OPERATIONS if name not in of_model for tensor in tensors
        )),
        *as_json(*({"id": 1, "method": name, "params": reading} for name in of_model)),
    ]  # fmt: skip


def take_checkpoint(raw: bytes) -> None:
    """A whole file: its header, its weights under a scheme, and what the report says of them."""
    with open_model(file_of(raw, "input.safetensors")) as source:
        inspection = inspect_model(source, (Scheme.parse("int4:group64"), Scheme.parse("nf4:dq")))
        write(inspection_document(inspection, all_tensors=True))


ANSWERS = tuple(
    kind
    for module in (activations, codes, outliers, pictures, tensors)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__
)


async def _events(raw: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    while (frame := await read_event(reader)) is not None:
        reply = Reply(frame.head.data or {}, frame.arrays)
        for kind in ANSWERS:
            try:
                reply.read(kind)
            except CodecError:
                continue


def _frame(data: Any, shape: Sequence[int] = ()) -> bytes:
    arrays = [{"name": "cells", "dtype": "<f4", "shape": shape, "nbytes": 24}] if shape else []
    head = {"event": "result", "id": 7, "data": data, "fraction": 0.5, "arrays": arrays}
    return json.dumps(head).encode() + b"\n" + bytes(24 if shape else 0)


def take_keys(raw: bytes) -> None:
    parser = KeyParser()
    text = raw.decode("utf-8", "replace")
    for start in range(0, len(text), 64):
        list(parser.feed(text[start : start + 64]))
    list(parser.tick())


#: An adapter that replaces one tensor of its base.
NORM = TensorInfo("norm.weight", "F32", (4,), 4, 16, "x", 0, 16, readable=True)
ONE_TENSOR = ModelSource("x", "folder", "x", tensors={NORM.name: NORM})
ADAPTER = {
    "peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_dora": False, "fan_in_fan_out": False,
    "rank_pattern": {"^q_proj": 4}, "alpha_pattern": {"v": 2.5}, "init_lora_weights": True,
    "target_modules": ["q_proj"], "use_rslora": None,
}  # fmt: skip

TARGETS: dict[str, Target] = {
    "safetensors": Target(
        lambda: [_of_header(*as_json(HEADER))],
        lambda raw: open_model(file_of(raw, "input.safetensors")),
        json=False,
    ),
    "index": Target(
        lambda: as_json({"weight_map": {"a": "x.safetensors", "b": "./d/y.safetensors"}}),
        lambda raw: layout.read_index(raw, "f.index.json"),
    ),
    "estimate": Target(configs, take_estimate),
    "gguf": Target(BLOCKS.seeds, take_gguf, json=False),
    "scheme": Target(
        lambda: [name.encode() for name in SCHEMES],
        lambda raw: Scheme.parse(raw.decode("utf-8", "replace")),
        json=False,
    ),
    "plan": Target(
        lambda: as_json({"method": "qlora", "batch": 2, "sequence": 16, "lora_targets": ["q_proj"],
                       "optimizer": "adamw", "checkpointing": True, "gpus": 2, "zero": 2,
                       "lora_rank": 8, "lora_dropout": 0.1}),
        take_plan,
    ),
    "toml": Target(
        lambda: [CONFIGURATION],
        lambda raw: load_config({"QTUI_CONFIG": str(file_of(raw))}),
        json=False,
    ),
    "state": Target(lambda: as_json(STATE), lambda raw: read_state(file_of(raw))),
    "operation": Target(_operation_seeds, take_operation),
    "checkpoint": Target(
        lambda: as_json(HEADER | {
            "q.weight": {"dtype": "I8", "shape": [6, 100], "data_offsets": [25, 625]},
            "k.weight": {"dtype": "F16", "shape": [3, 2, 50], "data_offsets": [625, 1225]},
            "layers.0.v": {"dtype": "F32", "shape": [1, 0], "data_offsets": [1225, 1225]},
        }),
        lambda raw: take_checkpoint(_of_header(raw, bytes(range(245)) * 5)),
    ),
    "packed": PACKED,
    "blocks": BLOCKS,
    "event": Target(
        lambda: [
            _frame({**TENSOR, **VIEW, **MORE}),
            _frame({"name": "a", "rows": 2, "columns": 3}, (2, 3)) * 2,
            _frame(None),
        ],
        lambda raw: asyncio.run(_events(raw)),
    ),
    "keys": Target(
        lambda: [b"ab\x1b[A\x1b[1;5C\x1b\x1bq\x1b[<0;3;4M\x1b[200~paste\x1b[201~\x1bOP\x1b[97u"],
        take_keys,
        json=False,
    ),
    "adapter": Target(
        lambda: as_json(ADAPTER),
        lambda raw: read_adapter(
            AdapterSource(load_object(raw, "adapter_config.json", unique=False), ONE_TENSOR)
        ),
    ),
    **OWN_FILES,
}  # fmt: skip
