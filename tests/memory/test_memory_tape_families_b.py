"""The tape of GPT-2 and its relatives, Falcon, BLOOM, DeepSeek, encoders and T5 against traces of
the classes: the peak of every phase."""

from __future__ import annotations

from typing import Any

import pytest
from tracing import Case, traced

from qtui_core.memory.families import shape_of
from qtui_core.memory.plan import RunPlan, resolve
from qtui_core.memory.record import Recording
from qtui_core.memory.step import record_step
from qtui_core.training.compare import peak_differences

pytestmark = pytest.mark.slow

GPT = {"vocab_size": 500, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 64}
PLAIN = {
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
OPT = {
    "vocab_size": 500,
    "hidden_size": 128,
    "ffn_dim": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
LATENT = PLAIN | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
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
T5 = {
    "vocab_size": 500,
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 192,
    "num_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

#: Turnings of each family.
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_bigcode, all heads": GPT | {"multi_query": False},
    "gpt_neox": PLAIN,
    "gpt_neox, one after the other": PLAIN
    | {"use_parallel_residual": False, "hidden_dropout": 0.1},
    "phi": PLAIN | {"resid_pdrop": 0.1},
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
    "roberta": PLAIN | {"type_vocab_size": 1},
    "t5": T5,
    "t5, gated": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}

PLANS = {
    "full": RunPlan(method="full", checkpointing=False),
    "full, checkpoints": RunPlan(method="full", checkpointing=True),
    "lora": RunPlan(method="lora", checkpointing=False),
    "lora, checkpoints": RunPlan(method="lora", checkpointing=True),
    "qlora": RunPlan(method="qlora", checkpointing=False),
    "qlora, checkpoints": RunPlan(method="qlora", checkpointing=True),
}

#: How far a peak may be from the trace's, percent, and the start of the phase, where it is known to
#: differ.
#: - Falcon: the trace does not see what _safe_softmax takes inside composed attention. With
#:   k-bit weights the table of a nested quantization, 1 KiB, is counted though Falcon's linear
#:   layers, of a class of their own, are not quantized. With alibi some scalars are left out.
#: - DeepSeek: a few KiB in the backward pass of a recomputed layer under adapters.
#: - T5: autocast keeps the cast of the zeros that are the bias of cross attention; the trace does
#:   not.
KNOWN: dict[tuple[str, str], float] = {
    ("falcon", "forward"): 2.0,
    ("falcon", ""): 0.05,
    ("falcon, grouped", ""): 0.05,
    ("falcon, alibi", ""): 0.1,
    ("deepseek_v2", "backward"): 0.1,
    ("deepseek_v3", "backward"): 0.1,
    ("deepseek_v3, at once", "backward"): 0.1,
    ("t5", ""): 2.0,
    ("t5, gated", ""): 2.0,
}


def case(name: str, title: str) -> Case:
    family = name.partition(",")[0]
    config = {"model_type": family, "torch_dtype": "bfloat16"} | FAMILIES[name]
    targets: tuple[str, ...] = ("all-linear",)
    if family == "falcon":  # whose linear layers are of a class that peft does not take for one
        targets = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    plan = vars(PLANS[title]) | {"batch": 2, "sequence": 48, "lora_targets": targets}
    return config, resolve(RunPlan(**plan), "bf16"), {}


@pytest.fixture(scope="module")
def traces() -> dict[tuple[str, str], Recording]:
    wanted = {(name, title): case(name, title) for name in FAMILIES for title in PLANS}
    return dict(zip(wanted, traced(*wanted.values()), strict=True))


@pytest.mark.parametrize("title", PLANS)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_peak_of_every_phase_is_that_of_the_class(traces, name, title):
    config, plan, _ = case(name, title)
    tape = record_step(shape_of(config), plan)
    for phase, percent in peak_differences(tape, traces[name, title]).items():
        if phase.startswith(("load", "prepare")):
            continue
        if name.startswith("t5") and title != "qlora, checkpoints":
            allowed = 0.0
        else:
            known = [KNOWN[key] for key in KNOWN if key[0] == name and phase.startswith(key[1])]
            allowed = max(known, default=0.0)
        assert abs(percent) <= allowed, (phase, percent)
