"""No drift: the tape against the installed transformers, peft and bitsandbytes, operation by
operation, for every family that has a shape, and over a grid of plans.

Fails with the first operation that differs, on the tape and in the classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from random import Random
from typing import Any

import pytest
from drift import Agreement, Case, compare

from qtui_core.errors import UsageError
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, check_against, resolve
from qtui_core.memory.shape.from_config import families, shape_from_config
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
#: between the first and the last are compared operation by operation below and in
#: test_memory_tape_steps.py.
GRID_MODELS: dict[str, dict[str, Any]] = {
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
    "model": tuple(GRID_MODELS),
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
    return {"model_type": model, "torch_dtype": "bfloat16", **GRID_MODELS[model]}


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

TOWER = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 128,
    "num_position_embeddings": 16, "patch_size": 4, "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
PIXTRAL = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
#: Heads and elements of keys and of values differ; three of four layers are linear.
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}

#: Embeddings of each layer, keys that later layers share, and two sizes of heads.
GEMMA4 = LLAMA | {
    "num_hidden_layers": 6,
    "head_dim": 48,
    "global_head_dim": 64,
    "sliding_window": 16,
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 300,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
}
#: And streams of embeddings, a product of low rank, sparse layers, and another width of each.
GEMMA3N = GEMMA4 | {
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.5, 0.0],
    "intermediate_size": [192, 160, 192, 160, 192, 192],
    "laurel_rank": 40,
}
#: The larger models have neither.
GEMMA4_PLAIN = GEMMA4 | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}

#: Of each family the turning that its class takes by default, then others that configurations
#: take. Sizes differ from each other, so that none can stand for another.
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama, biases": LLAMA
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama, one head of keys": LLAMA | {"num_key_value_heads": 1},
    "smollm3": LLAMA | {"no_rope_layer_interval": 2},
    "smollm3, windows": LLAMA
    | {"no_rope_layers": [1, 0, 0], "use_sliding_window": True, "sliding_window": 16},
    "seed_oss": LLAMA | {"head_dim": 64},
    "seed_oss, without dropout": LLAMA
    | {"head_dim": 48, "residual_dropout": 0.0, "attention_dropout": 0.0, "mlp_bias": True},
    "mistral": LLAMA,
    "mistral, window": LLAMA | {"sliding_window": 16},
    "ministral3": LLAMA | {"head_dim": 48},
    "ministral3, window": LLAMA | {"head_dim": 48, "sliding_window": 16},
    "qwen2": LLAMA | {"tie_word_embeddings": True},
    "qwen2, windows": LLAMA
    | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "qwen3": LLAMA | {"head_dim": 64},
    "qwen3_next": EXPERTS | DELTA | {"mlp_only_layers": [1]},
    "qwen3_next, as many keys": EXPERTS
    | DELTA
    | {"linear_num_key_heads": 6, "layer_types": ["full_attention"] + ["linear_attention"] * 3},
    "qwen3_5_text": LLAMA | DELTA,
    "qwen3_5_text, as many keys": LLAMA
    | DELTA
    | {"linear_num_key_heads": 6, "attention_bias": True, "linear_conv_kernel_dim": 3},
    "qwen3_5_moe_text": EXPERTS | DELTA,
    "qwen3_5": {"text_config": LLAMA | DELTA, "vision_config": TOWER},
    "qwen3_5_moe": {"text_config": EXPERTS | DELTA, "vision_config": TOWER},
    "gemma": LLAMA | {"head_dim": 48},
    "gemma2": LLAMA | {"head_dim": 48},
    "gemma2, one head of keys": LLAMA | {"head_dim": 48, "num_key_value_heads": 1},
    "gemma2, not capped": LLAMA
    | {"head_dim": 48, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3_text": LLAMA | {"head_dim": 48, "sliding_window": 16, "sliding_window_pattern": 2},
    "gemma3n_text": GEMMA3N,
    "gemma3n_text, three streams": GEMMA3N
    | {"altup_num_inputs": 3, "num_kv_shared_layers": 0, "num_key_value_heads": 1}
    | {"attention_bias": True, "tie_word_embeddings": False, "attention_dropout": 0.1},
    "gemma4_text": GEMMA4,
    "gemma4_text, one head of keys": GEMMA4
    | {"num_key_value_heads": 1, "final_logit_softcapping": 30.0},
    "gemma4_text, keys are values": GEMMA4_PLAIN
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_hidden_layers": 3}
    | {"layer_types": GEMMA4["layer_types"][:3]},
    "gemma4_text, wide heads": GEMMA4_PLAIN | {"attention_k_eq_v": True, "global_head_dim": 264},
    "gemma4_text, experts": GEMMA4_PLAIN
    | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    "phi": PLAIN | {"resid_pdrop": 0.1},
    "phi3": LLAMA,
    "phi3, a part": LLAMA
    | {"partial_rotary_factor": 0.5, "resid_pdrop": 0.1, "sliding_window": 16},
    "granite": LLAMA | {"residual_multiplier": 0.2},
    "olmo2": LLAMA,
    "olmo3": LLAMA
    | {
        "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "olmo3, windows": LLAMA | {"sliding_window": 16},
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
    "gpt_neox, whole heads": PLAIN | {"rotary_pct": 1.0},
    "gpt_neox, one after the other": PLAIN
    | {"use_parallel_residual": False, "hidden_dropout": 0.1},
    "opt": OPT,
    "opt, projected": OPT | {"word_embed_proj_dim": 64, "do_layer_norm_before": False},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v3, at once": LATENT | {"q_lora_rank": None, "first_k_dense_replace": 9},
    "gpt_oss": EXPERTS | {"head_dim": 48, "sliding_window": 16},
    "gpt_oss, without biases": EXPERTS
    | {
        "attention_bias": False,
        "attention_dropout": 0.1,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "glm4_moe": LATENT | {"num_key_value_heads": 2, "attention_bias": True},
    "glm4_moe, norms": LATENT
    | {
        "num_key_value_heads": 2,
        "use_qk_norm": True,
        "head_dim": 64,
        "n_group": 1,
        "topk_group": 1,
    },
    "qwen3_vl": {"text_config": LLAMA | {"head_dim": 48}, "vision_config": TOWER},
    "qwen3_vl_moe": {
        "text_config": EXPERTS | {"mlp_only_layers": [1]},
        "vision_config": TOWER,
    },
    "mistral3": {
        "text_config": LLAMA,
        "vision_config": PIXTRAL,
        "tie_word_embeddings": False,
    },
    "bert": PLAIN,
    "roberta": PLAIN,
}
#: Families whose language model is one of the above, of a config.json with a `text_config`; and
#: one that transformers has no class of.
_INNER = {"gemma3", "gemma3n", "gemma4", "llama4", "qwen", "qwen3_vl_text", "qwen3_vl_moe_text"}
#: Steps that a class cannot run: Gemma 3n clips weights of AltUp, which 4-bit ones do not allow.
NO_STEP = (("gemma3n_text", "qlora"), ("gemma3n_text, three streams", "qlora"))

#: These are not compared operation by operation, but to CLOSE percent of the peak and to so many
#: percent of any phase. GPT-BigCode without shared heads copies the gradient of its parts once
#: more. With adapters, routers of DeepSeek and GLM keep one more product, and GPT-NeoX without
#: parallel parts frees one product a little earlier.
FURTHER_PHASE = {
    "gpt_bigcode, all heads": 0.0,
    "deepseek_v2": 0.1,
    "deepseek_v3": 0.1,
    "deepseek_v3, at once": 0.1,
    "glm4_moe": 0.0,
    "glm4_moe, norms": 0.0,
    "gpt_neox, one after the other": 0.1,
}

#: Chunks of a gated delta net: several, of which the last is full or not, and one.
LENGTHS = (150, 128, 64)

METHODS = ("full", "lora", "qlora")
CHECKPOINTING = {False: "kept", True: "checkpoints"}
#: Every family with full training and, in turn, with adapters on a base in 16 or in 4 bits; its
#: variants with one of the three. Steps of both kinds, of one sequence and of two. More of them
#: together are in the grid.
STEPS = [
    f"{model}: {method}, {CHECKPOINTING[(place + turn) % 2 == 1]}, {1 + (place // 2 + turn) % 2}"
    for place, model in enumerate(MODELS)
    for turn, method in enumerate(
        (METHODS[place % 3],) if "," in model else ("full", METHODS[1 + place % 2])
    )
    if (model, method) not in NO_STEP
]

STEPS += [
    f"qwen3_5_text: {method}, {kept}, {batch}, {length}"
    for length in LENGTHS
    for method, kept, batch in (
        ("full", "kept", 1), ("full", "checkpoints", 2), ("lora", "kept", 2),
        ("qlora", "checkpoints", 1), ("qlora", "kept", 2),
    )
]  # fmt: skip
STEPS += [
    f"{model}: {method}, kept, {batch}, eager"
    for model, method, batch in (
        ("deepseek_v2", "full", 2), ("deepseek_v3", "full", 2), ("deepseek_v3, at once", "lora", 1),
    )
]  # fmt: skip
STEPS += [
    f"gemma3n_text: {method}, {kept}, {batch}"
    for method in ("full", "lora") for kept in CHECKPOINTING.values() for batch in (1, 2)
    if f"gemma3n_text: {method}, {kept}, {batch}" not in STEPS
]  # fmt: skip

#: How many of ten plans of the grid may differ by more than CLOSE percent of the peak, and by how
#: much any may differ.
FURTHER, CLOSE, WORST = 1, 0.05, 1.0


@cache
def plans() -> dict[str, Case]:
    """The grid by names. It takes a second to draw, so it is not made at collection."""
    return {case.name: case for case in grid()}


def step_of(name: str) -> Case:
    model, _, run = name.partition(": ")
    method, kept, batch, *more = run.split(", ")
    family = model.partition(",")[0]
    config = {"model_type": family, "torch_dtype": "bfloat16", **MODELS[model]}
    plan = {
        "method": method,
        "checkpointing": kept == CHECKPOINTING[True],
        "batch": int(batch),
        "sequence": int(more[0]) if more[:1] and more != ["eager"] else 48,
        "attention": "eager" if more == ["eager"] else "sdpa",
        "lora_targets": ["all-linear"],
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
    allowed = FURTHER_PHASE.get(name.partition(":")[0])
    if allowed is None:
        assert found.difference is None, found.difference
        assert found.worst_phase == 0.0
    else:
        assert abs(found.error) <= CLOSE
        assert abs(found.worst_phase) <= allowed


@pytest.mark.parametrize("name", [f"{model}: {method}, kept, 1" for model, method in NO_STEP])
def test_what_no_class_can_run_is_refused(agreements: dict[str, Agreement], name: str) -> None:
    assert "dtype torch.uint8" in agreements[name].failed
    shape = shape_from_config(step_of(name).config)
    with pytest.raises(UsageError, match="clips weights of AltUp"):
        estimate(shape, RunPlan(method="qlora"))
    assert estimate(shape, RunPlan(method="inference", quant="nf4")).origin == "tape"


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
