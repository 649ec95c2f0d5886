"""The tape of Llama and its descent against traces of the classes, allocation by allocation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tracing import Case, traced

from qtui_core.memory.families import shape_of
from qtui_core.memory.plan import RunPlan, resolve
from qtui_core.memory.record import Recording
from qtui_core.memory.step import record_step
from qtui_core.training.compare import first_difference, peak_differences

pytestmark = pytest.mark.slow

SIZES = {
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "intermediate_size_mlp": 160,
}

#: Turnings of each family: those of its class, then others that its configurations take.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {},
    "mistral, window": {"sliding_window": 16},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "gemma": {"head_dim": 48},
    "gemma2": {"head_dim": 48},
    "gemma2, not capped": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3_text": {"head_dim": 48, "sliding_window": 16, "sliding_window_pattern": 2},
    "phi3": {},
    "phi3, a part": {"partial_rotary_factor": 0.5, "resid_pdrop": 0.1, "sliding_window": 16},
    "granite": {"residual_multiplier": 0.2},
    "olmo": {},
    "olmo, clipped": {"clip_qkv": 8.0},
    "olmo2": {},
    "stablelm": {"use_qkv_bias": True},
    "stablelm, heads": {"qk_layernorm": True, "use_parallel_residual": True},
    "cohere": {},
    "cohere, heads": {"use_qk_norm": True},
    "cohere2": {"sliding_window": 16, "sliding_window_pattern": 2},
    "mixtral": EXPERTS,
    "qwen2_moe": EXPERTS | {"decoder_sparse_step": 2},
    "qwen3_moe": EXPERTS | {"norm_topk_prob": True, "head_dim": 64},
    "granitemoe": EXPERTS,
    "llama4_text": EXPERTS | {"interleave_moe_layer_step": 2, "head_dim": 32},
    "llama4_text, chunks": EXPERTS | {"attention_chunk_size": 16, "no_rope_layer_interval": 2},
}

PLANS = {
    "full": RunPlan(method="full", checkpointing=False),
    "full, checkpoints": RunPlan(method="full", checkpointing=True),
    "lora": RunPlan(method="lora", checkpointing=False),
    "lora, checkpoints": RunPlan(method="lora", checkpointing=True),
    "qlora": RunPlan(method="qlora", checkpointing=False),
    "qlora, checkpoints": RunPlan(method="qlora", checkpointing=True),
}


#: Of the turnings, one that keeps what it computes and two that compute it again are enough.
SOME = ("full", "lora, checkpoints", "qlora, checkpoints")

CASES = [(name, title) for name in FAMILIES for title in (SOME if "," in name else PLANS)]


def case(name: str, title: str) -> Case:
    config = SIZES | {"model_type": name.partition(",")[0]} | FAMILIES[name]
    plan = replace(PLANS[title], batch=2, sequence=48)
    return config, resolve(plan, "bf16"), {}


@cache
def traces(name: str) -> dict[str, Recording]:
    """The traces of one family, all from one process."""
    titles = [title for other, title in CASES if other == name]
    return dict(zip(titles, traced(*(case(name, title) for title in titles)), strict=True))


@pytest.mark.parametrize(("name", "title"), CASES)
def test_the_tape_allocates_what_the_class_does(name, title):
    config, plan, _ = case(name, title)
    tape = record_step(shape_of(config), plan)
    trace = traces(name)[title]
    found = first_difference(tape, trace)
    assert found is None, str(found)
    for phase, percent in peak_differences(tape, trace).items():
        # What a model takes while it is loaded and prepared is held against elsewhere.
        if not phase.startswith(("load", "prepare")):
            assert percent == 0.0, phase
