"""Operations of a step, compared with the textbook's formulas and with torch's own counter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qtui_core.errors import UsageError
from qtui_core.memory.compute import compute_of
from qtui_core.memory.devices.device import find_device
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.shape.from_config import shape_from_config

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
SHAPE = shape_from_config(CONFIG)
BATCH, SEQUENCE = 2, 48
TOKENS = BATCH * SEQUENCE
#: Of one layer: queries, keys and values, the way back, three of the feed-forward part.
LAYER = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 176
HEAD = 64 * 320
N = 3 * LAYER + HEAD


def plan(**changes: Any) -> RunPlan:
    base = RunPlan(
        method="full",
        batch=BATCH,
        sequence=SEQUENCE,
        dtype="fp32",
        autocast=False,
        checkpointing=False,
    )
    return resolve(replace(base, **changes), SHAPE.dtype)


def test_a_full_step_is_six_for_each_parameter_and_token():
    found = compute_of(SHAPE, plan())
    assert found.matrix_parameters == N
    assert found.total - found.attention == 6 * N * TOKENS
    assert found.forward * 2 == pytest.approx(found.backward, rel=0.05)


def test_checkpointing_computes_layers_again():
    found = compute_of(SHAPE, plan(checkpointing=True))
    assert found.total - found.attention == (6 * N + 2 * 3 * LAYER) * TOKENS
    # Close to 8ND if the head is small compared with the layers.
    assert 7 * N * TOKENS < found.total - found.attention < 8 * N * TOKENS


def test_frozen_weights_have_no_gradient():
    found = compute_of(SHAPE, plan(method="lora", lora_rank=4))
    # Inputs and outputs of q, k, v, o, gate, up, down.
    sums = (3 * 64 + 64 + 2 * 64 + 176) + (64 + 2 * 32 + 64 + 2 * 176 + 64)
    adapters = 3 * 4 * sums
    assert found.total - found.attention == (4 * N + 6 * adapters) * TOKENS


def test_inference_goes_forward():
    found = compute_of(SHAPE, plan(method="inference"))
    assert found.backward == found.recompute == 0
    assert found.total - found.attention == 2 * N * TOKENS


def test_attention_grows_with_the_square():
    once = compute_of(SHAPE, plan(sequence=512))
    twice = compute_of(SHAPE, plan(sequence=1024))
    assert twice.attention / once.attention == pytest.approx(4, rel=0.01)
    # Half of it is hidden from a causal kernel, none from eager attention; 4BS²a a layer.
    eager = compute_of(SHAPE, plan(method="inference", attention="eager", sequence=512))
    assert eager.attention == 3 * 4 * BATCH * 512 * 512 * 64
    causal = compute_of(SHAPE, plan(method="inference", sequence=512))
    assert causal.attention == pytest.approx(eager.attention / 2, rel=0.01)


def test_accumulation_multiplies_the_step():
    assert compute_of(SHAPE, plan(accumulation=4)).total == 4 * compute_of(SHAPE, plan()).total


def test_a_bound_by_rate_and_type():
    h100 = find_device("H100")
    found = compute_of(SHAPE, plan(dtype="bf16"))
    assert found.seconds_on(h100) == found.total / 989.4e12
    assert compute_of(SHAPE, plan()).seconds_on(h100) > 10 * found.seconds_on(h100)
    assert compute_of(SHAPE, plan(autocast=True)).dtype == "bf16"
    with pytest.raises(UsageError, match="bf16"):
        found.seconds_on(find_device("T4"))


def test_only_experts_that_work_count():
    config = {
        **CONFIG,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    found = compute_of(shape_from_config(config), plan())
    attention = 64 * (64 + 2 * 32) + 64 * 64
    assert found.matrix_parameters == 3 * (attention + 8 * 64 + 2 * 3 * 64 * 176) + HEAD


def counted(run: RunPlan) -> tuple[int, int]:
    """(forward, backward with what is computed again) of a step of the real class, as torch counts
    them. Eager attention, of which its counter knows every product."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM, LlamaConfig

    settings = {k: v for k, v in CONFIG.items() if k not in ("model_type", "torch_dtype")}
    model: Any = AutoModelForCausalLM.from_config(
        LlamaConfig(**settings), attn_implementation="eager"
    )
    if run.method == "lora":
        # The counter then sees a gradient of the first layer's input too.
        model.enable_input_require_grads()
        model = get_peft_model(
            model, LoraConfig(r=run.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    if run.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    tokens = torch.randint(0, 320, (BATCH, SEQUENCE))
    counter: Any = FlopCounterMode(display=False)
    with counter:
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"method": "full"}, {"method": "lora", "lora_rank": 4}])
def test_torch_counts_the_same(changes):
    run = plan(attention="eager", **changes)
    found = compute_of(SHAPE, run)
    assert counted(run) == (found.forward, found.backward)


@pytest.mark.slow
def test_torch_computes_no_more_again():
    run = plan(attention="eager", checkpointing=True)
    found = compute_of(SHAPE, run)
    _, backward = counted(run)
    # Recomputation ends before the last product of each layer, which nothing needs.
    spared = 3 * 2 * TOKENS * 64 * 176
    assert backward == found.backward + found.recompute - spared
