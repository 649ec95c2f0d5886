"""The estimate: its levels, and that its parts add up to them without a rest."""

from __future__ import annotations

import functools
import json
from math import prod
from pathlib import Path

import pytest
from formula_value import value_of
from resident import resident_bytes
from shorthands import allocated_in

from qtui_core.errors import UsageError
from qtui_core.memory import ModelShape, RunPlan, estimate
from qtui_core.memory.devices.device import context_bytes, cublas_workspace, find_device
from qtui_core.memory.estimate import Estimate, estimate_peaks, estimate_recording, process_on
from qtui_core.memory.formulas.terms import SLACK
from qtui_core.memory.plan.run_plan import resolve
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    PHASE,
    Component,
    Label,
    Recording,
    rounded,
)
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import named_parameters, parameter_count
from qtui_core.memory.step.device_events import with_workspaces
from qtui_core.memory.step.sharding import record_on_one_gpu
from tests.support.slow_timeline import live_peak

MIB = 1 << 20
CONFIGS = Path(__file__).parent / "configs"

#: A Llama of four layers whose sizes are all different, so that a formula has one reading.
SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 40,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SHAPE = shape_from_config(SMALL)

PLANS = {
    "qlora": RunPlan(batch=2, sequence=96),
    "qlora of wide sequences": RunPlan(batch=3, sequence=800, lora_dropout=0.05),
    "lora": RunPlan(method="lora", batch=2, sequence=160),
    "full": RunPlan(method="full", batch=2, sequence=160),
    "full, checkpoints": RunPlan(method="full", sequence=512, checkpointing=True),
    "full, held outputs": RunPlan(method="full", sequence=320, loop="manual"),
    "full, sharded": RunPlan(method="full", sequence=320, gpus=4, zero=3),
    "full, fused": RunPlan(method="full", sequence=64, optimizer="adamw-fused"),
    "full, 8 bits": RunPlan(method="full", sequence=64, optimizer="adamw8bit"),
    "accumulated": RunPlan(method="lora", sequence=64, accumulation=3),
    "inference": RunPlan(method="inference", batch=4, sequence=256),
}


@pytest.fixture(params=PLANS.values(), ids=PLANS)
def plan(request):
    return request.param


@functools.cache
def whole(plan: RunPlan) -> Estimate:
    """One estimate of a plan for all that is asked of it."""
    return estimate(SHAPE, plan)


def test_components_and_terms_sum_to_the_peak(plan):
    found = whole(plan)
    assert sum(term.bytes for term in found.components) == found.peak_allocated_bytes
    assert sum(term.bytes for term in found.terms) == found.peak_allocated_bytes
    beyond = sum(term.bytes for term in found.beyond)
    assert found.peak_allocated_bytes + beyond == found.process_bytes
    assert max(phase.allocated_bytes for phase in found.phases) == found.peak_allocated_bytes
    assert allocated_in(found, found.peak_phase) == found.peak_allocated_bytes


def test_levels_are_in_order_and_the_live_one_is_a_plain_recount(plan):
    found = whole(plan)
    resolved = resolve(plan, SHAPE.dtype)
    recording = record_on_one_gpu(SHAPE, resolved)
    events = with_workspaces(recording.events, resolved)
    assert found.peak_live_bytes == live_peak(events)
    assert found.resident_bytes <= found.peak_live_bytes <= found.peak_allocated_bytes
    assert found.peak_allocated_bytes <= found.peak_reserved_bytes < found.process_bytes


def test_resident_bytes_are_those_of_the_static_tables(plan):
    resolved = resolve(plan, SHAPE.dtype)
    workspace = cublas_workspace(resolved.torch, trains=resolved.trains).bytes
    assert whole(plan).resident_bytes == resident_bytes(SHAPE, resolved, workspace)


def test_peaks_alone_are_those_of_the_estimate_without_the_allocator(plan):
    found = estimate(SHAPE, plan, allocator=False)
    peaks = estimate_peaks(SHAPE, resolve(plan, SHAPE.dtype))
    assert dict(peaks.by_phase) == {phase.name: phase.live_bytes for phase in found.phases}
    assert (peaks.bytes, peaks.phase) == (found.peak_allocated_bytes, found.peak_phase)
    assert found.peak_reserved_bytes is None


def test_formulas_and_their_numbers_give_the_bytes(plan):
    found = whole(plan)
    letters = found.alive.letters
    for term in found.terms:
        assert value_of(term.numbers, {}) == term.bytes
        if term.name != SLACK:
            assert value_of(term.formula, letters) == term.bytes


def test_a_shape_reads_its_configuration_as_the_function_does():
    config = json.loads((CONFIGS / "llama-2-70b.json").read_text())
    assert ModelShape.from_config(config) == shape_from_config(config)


def formulas(shape: ModelShape, plan: RunPlan) -> set[tuple[str, str]]:
    """(name, formula) of the terms of the peak."""
    terms = estimate(shape, plan, allocator=False).terms
    return {(term.name, term.formula) for term in terms}


def test_formulas_are_of_the_sizes_that_a_tensor_has():
    adapted = RunPlan(batch=2, sequence=176, quant="nf4", attention="eager", checkpointing=False)
    assert {
        ("mlp.down_proj.weight", "L*h*I/2"),
        ("mlp.down_proj.weight.absmax", "L*h*I/16"),
        ("self_attn.k_proj.lora_B.default.weight", "L*G*D*r*4"),
        ("self_attn.o_proj.lora_A.default.weight.exp_avg", "L*H*D*r*4"),
        ("input_ids", "r512(B*S*8)"),
        ("_softmax", "L*B*S*S*H*4"),
        ("_log_softmax", "B*S*V*4"),
    } <= formulas(SHAPE, adapted)


def test_equal_sizes_of_several_products_have_each_their_own():
    """In a Llama of 1 B the MLP is 4 h wide and keys a quarter of h, and a rank of 16 makes 4 I r
    bytes of 64 I."""
    shape = shape_from_config(json.loads((CONFIGS / "llama-3.2-1b.json").read_text()))
    assert {
        ("mlp.up_proj.weight", "L*h*I*2"),
        ("self_attn.k_proj.weight", "L*G*D*h*2"),
        ("silu", "L*B*S*I*2"),
        ("_to_copy of post_attention_layernorm", "L*B*S*h*4"),
    } <= formulas(shape, RunPlan(method="lora", sequence=1000))
    assert {
        ("mlp.up_proj.weight", "L*h*I/2"),
        ("mlp.up_proj.weight.nested_absmax", "L*h*I/4,096"),
        ("mlp.up_proj.weight.quant_map", "L*r512(64)"),
        ("mlp.up_proj.lora_A.default.weight", "L*h*r*4"),
        ("model.embed_tokens.weight", "V*h*4"),
    } <= formulas(shape, RunPlan(sequence=1000))


def test_full_training_in_bfloat16_holds_what_the_arithmetic_says():
    """Two bytes a weight, four of AdamW's moments; the loss holds log-probabilities and two
    gradients in float32 when its backward pass is at its widest."""
    plan = RunPlan(method="full", batch=2, sequence=512)
    found = estimate(SHAPE, plan)
    bytes_of = {term.name: term.bytes for term in found.components}
    stored = sum(rounded(2 * prod(sizes)) for _, sizes in named_parameters(SHAPE))
    assert bytes_of["weights"] == stored
    assert bytes_of["optimizer states"] == 2 * stored
    assert found.resident_bytes == pytest.approx(
        6 * parameter_count(SHAPE) + 2 * 8_519_680, rel=1e-3
    )
    logits = 4 * plan.tokens * SHAPE.vocabulary
    # The 16-bit logits are gone: nothing holds the outputs.
    assert 3 * logits <= bytes_of["loss"] < 3.1 * logits
    held = estimate(SHAPE, RunPlan(method="full", batch=2, sequence=512, loop="manual"))
    more = held.peak_live_bytes - found.peak_live_bytes
    assert more >= logits // 2


#: Blocks of 10 MiB and more have segments of their own, rounded up to 2 MiB.
HAND_MADE = Recording(
    (
        (PHASE, "load"),
        (ALLOCATE, 1, 32 * MIB, Label("weight", Component.WEIGHTS)),
        (PHASE, "prepare"),
        (PHASE, "forward"),
        (ALLOCATE, 2, 11 * MIB + 1, Label("mm")),
        (FREE, 2),
        (ALLOCATE, 3, 11 * MIB - 1, Label("mm")),
        (PHASE, "loss"),
        (PHASE, "backward"),
        (FREE, 3),
        (ALLOCATE, 4, 700, Label("mm")),
        (PHASE, "optimizer"),
        (FREE, 4),
        (PHASE, "between steps"),
    ),
    "tape",
)


def test_a_recording_made_by_hand_has_the_levels_that_the_allocator_gives_it():
    # A torch that frees workspaces does not include them in the sum.
    plan = resolve(RunPlan(method="full", torch="2.15"), "bf16")
    found = estimate_recording(HAND_MADE, SHAPE, plan)
    # Second tensor: 11 MiB + 512; its segment is 12 MiB, whose rest is too small to cut off.
    assert found.peak_live_bytes == 43 * MIB + 512
    assert found.peak_allocated_bytes == 44 * MIB
    assert found.peak_reserved_bytes == 46 * MIB
    assert found.resident_bytes == 32 * MIB
    assert found.peak_phase == "forward"
    bytes_of = {term.name: term.bytes for term in found.components}
    assert bytes_of == {"weights": 32 * MIB, "temporaries": 11 * MIB + 512, SLACK: MIB - 512}
    assert [phase.name for phase in found.phases] == [
        "load", "prepare", "forward", "loss", "backward", "optimizer", "between steps",
    ]  # fmt: skip
    context = context_bytes().bytes
    assert found.process_bytes == 46 * MIB + context
    assert found.curve.totals == tuple(found.timeline.live[p] for p in found.curve.positions)


def test_expandable_segments_reserve_whole_pages():
    plan = resolve(RunPlan(method="full", torch="2.15", segments="expandable"), "bf16")
    found = estimate_recording(HAND_MADE, SHAPE, plan)
    assert found.peak_allocated_bytes == 43 * MIB + 512
    # Pages of 20 MiB for the large blocks, of 2 MiB for the small one.
    assert found.peak_reserved_bytes == 60 * MIB + 2 * MIB


def test_a_trace_needs_no_shape():
    plan = resolve(RunPlan(method="full"), "bf16")
    found = estimate_recording(HAND_MADE, None, plan)
    assert found.shape is None
    assert sum(term.bytes for term in found.components) == found.peak_allocated_bytes


def test_workspaces_and_context_are_those_of_the_device():
    hopper, ampere = find_device("H100"), find_device("A100")
    plan = PLANS["lora"]
    on_hopper, on_ampere = estimate(SHAPE, plan, hopper), estimate(SHAPE, plan, ampere)
    assert on_hopper.resident_bytes - on_ampere.resident_bytes == 2 * (32 * MIB - 8_519_680)
    assert process_on(on_ampere, ampere) == on_ampere.process_bytes
    more = process_on(on_ampere, hopper) - on_ampere.process_bytes
    contexts = context_bytes(hopper).bytes - context_bytes(ampere).bytes
    assert more == 2 * (32 * MIB - 8_519_680) + contexts


def test_a_gpu_without_flash_attention_takes_the_other_kernel():
    assert estimate(SHAPE, PLANS["lora"], find_device("T4")).plan.attention == "efficient"
    assert estimate(SHAPE, PLANS["lora"], find_device("A100")).plan.attention == "sdpa"


def test_an_impossible_plan_is_refused():
    with pytest.raises(UsageError, match="works in 16 bits"):
        estimate(SHAPE, RunPlan(method="full", dtype="fp32", attention="flash"))
    with pytest.raises(UsageError, match="does not divide"):
        estimate(SHAPE, RunPlan(method="full", tensor_parallel=4, gpus=4))


def test_weights_of_a_published_model_are_its_parameters():
    shape = shape_from_config(json.loads((CONFIGS / "llama-3.2-1b.json").read_text()))
    found = estimate(shape, RunPlan(method="inference", sequence=16), allocator=False)
    weights = next(term for term in found.components if term.name == "weights")
    assert weights.bytes == 2 * parameter_count(shape)
    widest = 2 * prod((shape.vocabulary, shape.hidden))
    assert any(term.bytes == widest and term.formula == "V*h*2" for term in found.terms)


@pytest.mark.parametrize("loop", ["trainer", "manual"])
def test_a_step_of_many_micro_batches_peaks_like_one_of_eight(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are recorded, however many were requested."""
    plan = RunPlan(method="lora", sequence=128, loop=loop, accumulation=8)
    few = estimate(SHAPE, plan)
    assert few.plan.accumulation == 8
    monkeypatch.setattr("qtui_core.memory.step.run.MICRO_BATCHES", 8)
    all_of_them = estimate(SHAPE, plan)
    assert len(all_of_them.events) > 2 * len(few.events)
    assert few.peak_live_bytes == all_of_them.peak_live_bytes
    assert few.peak_allocated_bytes == pytest.approx(all_of_them.peak_allocated_bytes, rel=2e-3)
    assert few.peak_reserved_bytes == pytest.approx(all_of_them.peak_reserved_bytes, rel=2e-2)
