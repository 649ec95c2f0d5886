"""Kernels that work in place, a cross entropy over its own logits, and checkpoints of the older
kind: against counting by hand, against the trace of the real checkpoint, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shorthands import allocated_in
from tracing import traced

from qtui_core.errors import UsageError
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, check_against, resolve
from qtui_core.memory.replay.record import ALLOCATE, Component, Phase, rounded
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.weights import tensors_of
from qtui_core.memory.step.run import record_all, record_step
from tests.support.slow_timeline import live_peak

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SHAPE = shape_from_config(LLAMA)
LORA = RunPlan(method="lora", batch=2, sequence=256, checkpointing=True, lora_rank=8)
QLORA = replace(LORA, method="qlora", kernels="fused", quant="nf4-dq", autocast=True)
TOKENS = LORA.tokens
SHAPE_LAYERS = len(SHAPE.layers)
HIDDEN, WIDTH, VOCABULARY = 256, 704, 1000


def saved(plan: RunPlan) -> int:
    """Bytes alive when the backward pass begins, beyond those between steps, of a run that does not
    checkpoint."""
    found = estimate(SHAPE, replace(plan, checkpointing=False), allocator=False)
    line = found.timeline
    start = next(span.start for span in line.spans[::-1] if span.name == Phase.BACKWARD)
    return line.live[start] - found.resident_bytes


# ------------------------------------------------------------------ what is saved


def test_a_fused_norm_saves_its_input_and_a_number_a_row_and_not_a_float32_copy():
    # Two norms a layer and the last. The first of all, before a frozen stream, saves nothing.
    # Instead of 4 bytes an element each keeps the 2 of its input.
    plain, fused = saved(LORA), saved(replace(LORA, kernels="fused"))
    norms = 2 * SHAPE_LAYERS
    assert plain - fused == norms * (4 - 2) * TOKENS * HIDDEN


def test_a_fused_mlp_saves_gate_and_up_and_neither_silu_nor_product():
    everywhere = replace(QLORA, lora_targets=("all-linear",))
    attention = replace(QLORA, lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"))
    # With adapters the three results of the MLP are two: the activated gate is not kept.
    difference = saved(attention) - saved(everywhere)
    silu = 2 * TOKENS * WIDTH
    inputs = 2 * TOKENS * HIDDEN
    assert difference == pytest.approx(SHAPE_LAYERS * (silu - inputs), rel=0.01)


def test_liger_saves_the_factors_of_a_gate_and_its_norms_are_trained():
    liger = replace(LORA, kernels="liger")
    # Of gate, silu(gate) and up the middle one goes; norms keep 2 bytes an element, not 4.
    norms = 2 * SHAPE_LAYERS * (4 - 2) * TOKENS * HIDDEN
    assert saved(LORA) - saved(liger) == norms + SHAPE_LAYERS * 2 * TOKENS * WIDTH
    full = replace(LORA, method="full")
    resident = [
        estimate(SHAPE, plan, allocator=False).resident_bytes
        for plan in (full, replace(full, kernels="liger"))
    ]
    assert resident[0] == resident[1]


def test_weights_of_fused_norms_have_no_optimizer_states():
    full = replace(LORA, method="full")
    difference = (
        estimate(SHAPE, full, allocator=False).resident_bytes
        - estimate(SHAPE, replace(full, kernels="fused"), allocator=False).resident_bytes
    )
    assert difference == (2 * SHAPE_LAYERS + 1) * 2 * rounded(2 * HIDDEN)


# ------------------------------------------------------------------ the loss


@pytest.mark.parametrize(("loss", "copies"), [("in-place", 8), ("in-place-4.48", 10)])
def test_the_hump_of_a_cross_entropy_in_place(loss, copies):
    long = replace(LORA, kernels="fused", loss=loss, batch=2, sequence=256)
    wide = shape_from_config(LLAMA | {"vocab_size": 32000})
    wider = shape_from_config(LLAMA | {"vocab_size": 64000})
    grown = [estimate(shape, long, allocator=False) for shape in (wide, wider)]
    standing = [found.resident_bytes for found in grown]
    peak = [allocated_in(found, Phase.LOSS) for found in grown]
    assert all(found.peak_phase == Phase.LOSS for found in grown)
    per_logit = (peak[1] - peak[0] - standing[1] + standing[0]) / (512 * 32000)
    assert per_logit == pytest.approx(copies, rel=0.005)


# ------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize("plan", [replace(LORA, reentrant=True), replace(QLORA, reentrant=True)])
def test_layers_that_are_copied_are_as_those_that_are_built(plan):
    resolved = resolve(plan, SHAPE.dtype)
    built = record_all(SHAPE, resolved).events
    copied = record_step(SHAPE, resolved).events
    assert live_peak(built) == live_peak(copied)
    sizes = [[event[2] for event in run if event[0] == ALLOCATE] for run in (built, copied)]
    assert sizes[0] == sizes[1]


@pytest.mark.slow
def test_the_older_checkpoint_is_as_torch_runs_it():
    """Every phase of the tape against CheckpointFunction itself on fake tensors."""
    small = LLAMA | {"vocab_size": 64}
    plans = [
        resolve(replace(LORA, reentrant=True, **changes), "bf16")
        for changes in ({"lora_dropout": 0.1}, {"method": "full"})
    ]
    shape = shape_from_config(small)
    for plan, trace in zip(plans, traced(*((small, plan, {}) for plan in plans)), strict=True):
        ours = estimate(shape, plan, allocator=False)
        theirs = live_peak(trace.events)
        standing = sum(
            allocation.copies * allocation.bytes
            for allocation in ours.timeline.alive_at(ours.peak)
            if allocation.component is Component.WORKSPACES
        )
        assert ours.peak_live_bytes - standing == pytest.approx(theirs, rel=0.001), plan


# ------------------------------------------------------------------ refusals


def test_fused_kernels_are_refused_where_they_do_not_work():
    with pytest.raises(UsageError, match="--kbit-prep none"):
        resolve(replace(QLORA, kbit_prep="all"), "bf16")
    assert resolve(QLORA, "bf16").kbit_prep == "none"
    gpt2 = shape_from_config(
        {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 64}
    )
    plan = resolve(RunPlan(method="full", kernels="fused", sequence=64), "bf16")
    with pytest.raises(UsageError, match="--kernels torch"):
        check_against(gpt2, plan)
    assert all(
        tensor.requires_grad == (tensor.kind != "norm")
        for tensor in tensors_of(SHAPE, plan)
        if tensor.component is Component.WEIGHTS
    )
