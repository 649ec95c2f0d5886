"""No drift: the tape against the installed transformers, peft and bitsandbytes, operation by
operation, for every family that has a shape, and over a grid of plans.

Fails with the first operation that differs, on the tape and in the classes. As a table:
python -m tests.bench.memory_drift.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from drift import Agreement, Case, compare
from plan_grid import AXES, grid

from qtui_core.memory.shape.from_config import families

pytestmark = pytest.mark.slow

LLAMA = {
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
EXPERTS = LLAMA | {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "intermediate_size_mlp": 160,
}
GPT = {"vocab_size": 500, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 64}
PLAIN = {
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
OPT = PLAIN | {"ffn_dim": 192, "word_embed_proj_dim": 128}
LATENT = LLAMA | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
T5 = {"vocab_size": 500, "d_model": 128, "d_kv": 32, "d_ff": 192, "num_layers": 3, "num_heads": 4}

#: Of each family the turning that its class takes by default, then others that configurations
#: take. Sizes differ from each other, so that none can stand for another.
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama, biases": LLAMA
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": LLAMA,
    "mistral, window": LLAMA | {"sliding_window": 16},
    "qwen2": LLAMA | {"tie_word_embeddings": True},
    "qwen3": LLAMA | {"head_dim": 64},
    "gemma": LLAMA | {"head_dim": 48},
    "gemma2": LLAMA | {"head_dim": 48},
    "gemma2, not capped": LLAMA
    | {"head_dim": 48, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3_text": LLAMA | {"head_dim": 48, "sliding_window": 16, "sliding_window_pattern": 2},
    "phi": PLAIN | {"resid_pdrop": 0.1},
    "phi3": LLAMA,
    "phi3, a part": LLAMA
    | {"partial_rotary_factor": 0.5, "resid_pdrop": 0.1, "sliding_window": 16},
    "granite": LLAMA | {"residual_multiplier": 0.2},
    "olmo": LLAMA,
    "olmo, clipped": LLAMA | {"clip_qkv": 8.0},
    "olmo2": LLAMA,
    "stablelm": LLAMA | {"use_qkv_bias": True},
    "stablelm, heads": LLAMA | {"qk_layernorm": True, "use_parallel_residual": True},
    "cohere": LLAMA,
    "cohere, heads": LLAMA | {"use_qk_norm": True},
    "cohere2": LLAMA | {"sliding_window": 16, "sliding_window_pattern": 2},
    "mixtral": EXPERTS,
    "qwen2_moe": EXPERTS | {"decoder_sparse_step": 2},
    "qwen3_moe": EXPERTS | {"norm_topk_prob": True, "head_dim": 64},
    "granitemoe": EXPERTS,
    "llama4_text": EXPERTS | {"interleave_moe_layer_step": 2, "head_dim": 32},
    "llama4_text, chunks": EXPERTS | {"attention_chunk_size": 16, "no_rope_layer_interval": 2},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_bigcode, all heads": GPT | {"multi_query": False},
    "gpt_neox": PLAIN,
    "gpt_neox, one after the other": PLAIN
    | {"use_parallel_residual": False, "hidden_dropout": 0.1},
    "opt": OPT,
    "opt, projected": OPT | {"word_embed_proj_dim": 64, "do_layer_norm_before": False},
    "bloom": {"vocab_size": 500, "hidden_size": 128, "n_layer": 3, "n_head": 4},
    "falcon": PLAIN,
    "falcon, grouped": PLAIN | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, alibi": PLAIN
    | {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v3, at once": LATENT | {"q_lora_rank": None, "first_k_dense_replace": 9},
    "bert": PLAIN,
    "roberta": PLAIN,
    "t5": T5,
    "t5, gated": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
#: Families whose language model is one of the above, of a config.json with a `text_config`; and
#: one that transformers has no class of.
_INNER = {"gemma3", "llama4", "qwen"}
#: Their linear layers are of a class that peft does not take for one.
_NAMED = {"falcon": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]}

#: These are not compared operation by operation, but to CLOSE percent of the peak and to so many
#: percent of any phase. For Falcon without grouped heads, torch composes its attention, and a trace
#: sees _safe_softmax as one operation, whatever it allocates inside. With alibi, the slopes and the
#: positions are made in another order. With adapters: under autocast BLOOM adds its mask in
#: float32, routers of DeepSeek keep one more product, and sequential GPT-NeoX frees one product a
#: little earlier.
FURTHER_PHASE = {
    "falcon": 2.0,
    "falcon, alibi": 0.1,
    "bloom": 0.1,
    "deepseek_v2": 0.1,
    "deepseek_v3": 0.1,
    "deepseek_v3, at once": 0.1,
    "gpt_neox, one after the other": 0.1,
}

#: The same for single runs, which are exact in every phase: GPT-BigCode without shared heads copies
#: the gradient of its parts once more.
FURTHER_PHASE |= {
    f"{model}: {run}": 0.0
    for model, runs in {
        "gpt_bigcode, all heads": (
            "full, kept", "full, checkpoints", "lora, kept", "lora, checkpoints", "qlora, kept",
            "qlora, checkpoints",
        ),
    }.items()
    for run in runs
}  # fmt: skip

METHODS = ("full", "lora", "qlora")
CHECKPOINTING = {False: "kept", True: "checkpoints"}
#: Every model with every method, and steps of both kinds in turn: each pair of a model, a method
#: and a kind is there. More of them together are in the grid.
STEPS = [
    f"{model}: {method}, {CHECKPOINTING[(place + turn) % 2 == 1]}"
    for place, model in enumerate(MODELS)
    for turn, method in enumerate(METHODS)
]

#: How many of ten plans of the grid may differ by more than CLOSE percent of the peak, and by how
#: much any may differ.
FURTHER, CLOSE, WORST = 1, 0.05, 1.0


@cache
def plans() -> dict[str, Case]:
    """The grid by names. It takes a second to draw, so it is not made at collection."""
    return {case.name: case for case in grid()}


def step_of(name: str) -> Case:
    model, _, run = name.partition(": ")
    method, _, kept = run.partition(", ")
    family = model.partition(",")[0]
    config = {"model_type": family, "torch_dtype": "bfloat16", **MODELS[model]}
    plan = {
        "method": method,
        "checkpointing": kept == CHECKPOINTING[True],
        "batch": 2,
        "sequence": 48,
        "lora_targets": _NAMED.get(family, ["all-linear"]),
    }
    return Case(name, config, plan, steps=1)


@pytest.fixture(scope="module")
def agreements(request: pytest.FixtureRequest) -> dict[str, Agreement]:
    """All cases of this session at once: a process for each case would import torch for longer than
    it traces."""
    wanted = {
        item.callspec.params["name"]  # type: ignore[attr-defined]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    if any(item.name.startswith("test_the_grid") for item in request.session.items):
        wanted |= plans().keys()
    cases = (plans().get(name) or step_of(name) for name in sorted(wanted))
    return {case.name: agreement for case, agreement in compare(cases)}


def test_every_family_is_traced() -> None:
    traced = {model.partition(",")[0] for model in MODELS}
    assert traced == set(families()) - _INNER


@pytest.mark.parametrize("name", STEPS)
def test_every_operation_allocates_what_that_of_the_classes_does(
    agreements: dict[str, Agreement], name: str
) -> None:
    found = agreements[name]
    assert not found.failed
    assert found.standing[0] == found.standing[1]
    allowed = FURTHER_PHASE.get(name, FURTHER_PHASE.get(name.partition(":")[0]))
    if allowed is None:
        assert found.difference is None, found.difference
        assert found.worst_phase == 0.0
    else:
        assert abs(found.error) <= CLOSE
        assert abs(found.worst_phase) <= allowed


def test_the_grid_is_wide() -> None:
    assert len(plans()) >= 75
    for axis, values in AXES.items():
        if axis not in ("model", "lora_targets"):
            assert {case.plan[axis] for case in plans().values()} == set(values), axis
    assert {case.config["model_type"] for case in plans().values()} == set(AXES["model"])


def test_the_grid_agrees(agreements: dict[str, Agreement]) -> None:
    found = {name: agreements[name] for name in plans()}
    failed = {name: agreement.failed for name, agreement in found.items() if agreement.failed}
    assert not failed
    errors = {name: agreement.error for name, agreement in found.items()}
    further = {name: error for name, error in errors.items() if abs(error) > CLOSE}
    assert 10 * len(further) <= FURTHER * len(found), further
    assert max(map(abs, errors.values())) <= WORST, further
