"""Plans in which every possible pair of choices occurs: families, methods, and all options that a
trace of the installed libraries can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from random import Random
from typing import Any

from drift import Case

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan, check_against, resolve
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape

_LLAMA = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 2, "vocab_size": 2000,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
_ENCODER = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2, "vocab_size": 2000,
    "num_attention_heads": 8, "max_position_embeddings": 512,
}  # fmt: skip

#: Sizes with which a layer and the loss take similar numbers of bytes. There are two layers: those
#: between the first and the last are compared operation by operation in test_memory_drift.py and
#: test_memory_tape_steps.py.
MODELS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA | {"tie_word_embeddings": True},
    "qwen3": _LLAMA | {"head_dim": 128},
    "mistral": _LLAMA | {"sliding_window": 128},
    "gemma2": _LLAMA | {"head_dim": 64, "tie_word_embeddings": True},
    "phi3": _LLAMA | {"bos_token_id": 0, "eos_token_id": 0},
    "gpt2": {"n_embd": 512, "n_layer": 2, "n_head": 8, "n_positions": 512, "vocab_size": 2000},
    "gpt_neox": _ENCODER,
    "opt": _ENCODER | {"ffn_dim": 2048, "word_embed_proj_dim": 512},
    "mixtral": _LLAMA | {"num_local_experts": 4, "intermediate_size": 704},
    "bert": _ENCODER,
}

AXES: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "method": ("full", "lora", "qlora"),
    "checkpointing": (False, True),
    "autocast": (False, True),
    "kbit_prep": ("none", "norms", "all"),
    "lora_dropout": (0.0, 0.1),
    "attention": ("sdpa", "efficient", "eager"),
    "optimizer": ("adamw", "adamw-fused", "adamw8bit", "sgd"),
    "padding_mask": (False, True),
    "accumulation": (1, 2),
    "loss": ("stock", "stock-4.48"),
    "loop": ("trainer", "manual"),
    "adapter_dtype": ("fp32", "bf16"),
    "dtype": ("bf16", "fp32"),
    "quant": (None, "nf4", "nf4-dq", "fp4-dq"),
    "lora_targets": ("all-linear", "some"),
    "reentrant": (False, True),
    "batch": (2, 1),
}
PLANS = 84
_SIZES = {"sequence": 256, "lora_rank": 8}
#: Modules to adapt instead of all, by model.
_SOME = {
    "gpt2": ["c_attn"],
    "gpt_neox": ["query_key_value"],
    "phi3": ["qkv_proj"],
    "bert": ["query", "value"],
}
_CANDIDATES = 40


def grid() -> Iterator[Case]:
    """PLANS cases. Each has as many pairs of choices as possible that no earlier case has. One in
    three takes two steps, the others one: a second step adds only optimizer states, of which there
    are four kinds."""
    random = Random(4)
    met: set[tuple[tuple[str, Any], tuple[str, Any]]] = set()
    for number in range(PLANS):
        best: Mapping[str, Any] = {}
        most = -1
        for _ in range(_CANDIDATES):
            chosen = _drawn(random)
            new = len(set(combinations(chosen.items(), 2)) - met)
            if new > most:
                best, most = chosen, new
        met |= set(combinations(best.items(), 2))
        yield replace(_case(best), steps=1 if number % 3 else 2)


def _drawn(random: Random) -> dict[str, Any]:
    """Random choices that make a plan."""
    while True:
        chosen = {axis: random.choice(values) for axis, values in AXES.items()}
        if _is_plan(chosen):
            return chosen


#: Axes that a method leaves as they are by default.
_IDLE = {
    "full": ("kbit_prep", "lora_dropout", "adapter_dtype", "quant", "lora_targets"),
    "lora": ("kbit_prep", "quant"),
    "qlora": (),
}


def _is_plan(chosen: Mapping[str, Any]) -> bool:
    method, model, dropout = chosen["method"], chosen["model"], chosen["lora_dropout"]
    if (
        any(chosen[axis] != AXES[axis][0] for axis in _IDLE[method])
        or (method == "qlora") != (chosen["quant"] is not None)
        or (chosen["reentrant"] and not chosen["checkpointing"])
        or (chosen["loss"] != "stock" and model == "bert")
        # peft has no dropout around routers, which are parameters.
        or (model == "mixtral" and dropout and chosen["lora_targets"] != "some")
        or (chosen["adapter_dtype"] == "bf16" and chosen["dtype"] == "fp32")
    ):
        return False
    shape = _shape(model)
    try:
        plan = {k: tuple(v) if isinstance(v, list) else v for k, v in _case(chosen).plan.items()}
        check_against(shape, resolve(RunPlan(**plan), shape.dtype))
    except UsageError:
        return False
    return True


@cache
def _shape(model: str) -> ModelShape:
    return shape_from_config(_config(model))


def _config(model: str) -> dict[str, Any]:
    return {"model_type": model, "torch_dtype": "bfloat16", **MODELS[model]}


def _case(chosen: Mapping[str, Any]) -> Case:
    model = chosen["model"]
    targets = _SOME.get(model, ["q_proj", "v_proj"])
    plan = {k: v for k, v in chosen.items() if k not in ("model", "lora_targets")} | _SIZES
    plan["lora_targets"] = ["all-linear"] if chosen["lora_targets"] == "all-linear" else targets
    shown = [
        f"{axis}={value}"
        for axis, value in chosen.items()
        if axis not in ("model", "method") and value != AXES[axis][0]
    ]
    return Case(" ".join((model, chosen["method"], *shown)), _config(model), plan)
