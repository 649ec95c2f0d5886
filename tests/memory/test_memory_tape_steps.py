"""The tape against the classes of transformers, peft and bitsandbytes on fake CUDA tensors
(qtui_core.training.tracing.trace): the same bytes after every operation of forward and
backward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tracing import traced

from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Event, Recording, rounded
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.run import record_step

pytestmark = pytest.mark.slow

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN2 = LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 64}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": None}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 3,
    "n_head": 8,
    "n_positions": 512,
    "vocab_size": 1000,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.0,
    "torch_dtype": "bfloat16",
}
FP32 = {"torch_dtype": "float32"}
GEMMA3 = QWEN2 | {"model_type": "gemma3_text", "head_dim": 64}
BERT = LLAMA | {"model_type": "bert", "tie_word_embeddings": True}
BERT_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings", "decoder")

RUNS: dict[str, tuple[dict[str, Any], RunPlan]] = {
    "full": (LLAMA, RunPlan(method="full")),
    "full, checkpoints": (LLAMA, RunPlan(method="full", checkpointing=True)),
    "full, autocast": (LLAMA | FP32, RunPlan(method="full", autocast=True)),
    "full, tied, biases": (QWEN2, RunPlan(method="full", checkpointing=True)),
    "full, norms of heads": (QWEN3, RunPlan(method="full", checkpointing=True)),
    "full, manual loop": (LLAMA, RunPlan(method="full", loop="manual")),
    "full, manual loop, a cache": (GPT2, RunPlan(method="full", loop="manual")),
    "gpt2": (GPT2, RunPlan(method="full", checkpointing=True)),
    "gpt2, autocast": (GPT2 | FP32, RunPlan(method="full", autocast=True)),
    "lora": (LLAMA, RunPlan(method="lora", lora_dropout=0.05)),
    "lora, 16 bits, two modules": (
        LLAMA,
        RunPlan(method="lora", adapter_dtype="bf16", lora_targets=("q_proj", "v_proj")),
    ),
    "lora, autocast": (MISTRAL, RunPlan(method="lora", autocast=True, checkpointing=True)),
    "lora, tied embedding and head": (
        QWEN2,
        RunPlan(method="lora", lora_targets=("embed_tokens", "lm_head"), lora_dropout=0.05),
    ),
    "lora, scaled embedding, autocast, two micro batches": (
        GEMMA3 | FP32,
        RunPlan(method="lora", lora_targets=("embed_tokens",), autocast=True, accumulation=2),
    ),
    "lora, three embeddings, head": (
        BERT,
        RunPlan(method="lora", adapter_dtype="bf16", lora_targets=BERT_TABLES, checkpointing=True),
    ),
    "qlora, embedding and head": (
        QWEN2,
        RunPlan(method="qlora", lora_targets=("embed_tokens", "lm_head", "q_proj")),
    ),
    "qlora, embedding over no other": (
        LLAMA,
        RunPlan(method="qlora", kbit_prep="none", autocast=False, lora_targets=("embed_tokens",)),
    ),
    "qlora": (LLAMA, RunPlan(method="qlora", lora_dropout=0.05)),
    "qlora, no checkpoints": (QWEN3, RunPlan(method="qlora", checkpointing=False)),
    "qlora, norms": (QWEN2, RunPlan(method="qlora", kbit_prep="norms", quant="nf4")),
    "qlora, plain": (LLAMA, RunPlan(method="qlora", kbit_prep="none", autocast=False)),
}


def levels(events: tuple[Event, ...]) -> dict[tuple[str, int], list[int]]:
    """Bytes alive after each allocation, by phase and which of that name it is."""
    found: dict[tuple[str, int], list[int]] = {}
    counts: dict[str, int] = {}
    sizes: dict[int, int] = {}
    live = 0
    current: list[int] = []
    for event in events:
        if event[0] == PHASE:
            name = str(event[1])
            counts[name] = counts.get(name, 0) + 1
            current = found[name, counts[name]] = [live]
        elif event[0] == ALLOCATE:
            sizes[event[1]] = rounded(event[2])
            live += sizes[event[1]]
            current.append(live)
        elif event[0] == FREE:
            live -= sizes.pop(event[1])
    return found


@pytest.fixture(scope="module")
def traces() -> dict[str, Recording]:
    cases = [(config, replace(plan, batch=2, sequence=128), {}) for config, plan in RUNS.values()]
    return dict(zip(RUNS, traced(*cases), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_bytes_after_every_operation_are_those_of_the_real_classes(
    traces: dict[str, Recording], name: str
) -> None:
    config, plan = RUNS[name]
    plan = replace(plan, batch=2, sequence=128)
    real = levels(traces[name].events)
    shape = shape_from_config(config)
    taped = levels(record_step(shape, resolve(plan, shape.dtype)).events)
    for phase, expected in real.items():
        if phase[0] in ("load", "prepare"):
            continue
        found = taped[phase]
        if phase[0] == "optimizer":  # states are made in another order of parameters
            assert max(found) == max(expected), phase
        else:
            assert found == expected, phase
