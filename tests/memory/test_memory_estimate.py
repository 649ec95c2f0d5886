"""The estimate: its levels, and that its parts sum to them with nothing left over."""

from __future__ import annotations

import json
from fractions import Fraction
from math import prod
from pathlib import Path

import pytest

from qtui_core.errors import UsageError
from qtui_core.memory import ModelShape, RunPlan, estimate
from qtui_core.memory.devices.finding import find_device
from qtui_core.memory.devices.workspaces import context_bytes, cublas_workspace
from qtui_core.memory.estimate import (
    estimate_recording,
    process_on,
)
from qtui_core.memory.formulas.terms import SLACK, Symbols
from qtui_core.memory.plan.run_plan import resolve
from qtui_core.memory.replay.peaks import estimate_peaks
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    PHASE,
    Component,
    Label,
    Recording,
    live_peak,
    rounded,
)
from qtui_core.memory.resident import resident_bytes
from qtui_core.memory.shape.modules import named_parameters
from qtui_core.memory.step.collectives import record_on_one_gpu
from qtui_core.memory.step.on_device import with_workspaces
from qtui_core.memory.step.run import record_step

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
SHAPE = ModelShape.from_config(SMALL)

PLANS = {
    "qlora": RunPlan(batch=2, sequence=96),
    "qlora of wide sequences": RunPlan(batch=3, sequence=800, lora_dropout=0.05),
    "lora": RunPlan(method="lora", batch=2, sequence=160),
    "full": RunPlan(method="full", batch=2, sequence=160),
    "full, checkpoints": RunPlan(method="full", sequence=512, checkpointing=True),
    "full, held outputs": RunPlan(method="full", sequence=320, loop="manual"),
    "full, a script": RunPlan(method="full", sequence=320, loop="script"),
    "full, sharded": RunPlan(method="full", sequence=320, gpus=4, zero=3),
    "full, fused": RunPlan(method="full", sequence=64, optimizer="adamw-fused"),
    "full, 8 bits": RunPlan(method="full", sequence=64, optimizer="adamw8bit"),
    "accumulated": RunPlan(method="lora", sequence=64, accumulation=3),
    "inference": RunPlan(method="inference", batch=4, sequence=256),
}


@pytest.fixture(params=PLANS.values(), ids=PLANS)
def plan(request):
    return request.param


def test_components_and_terms_sum_to_the_peak(plan):
    found = estimate(SHAPE, plan)
    assert sum(term.bytes for term in found.components) == found.peak_allocated_bytes
    assert sum(term.bytes for term in found.terms) == found.peak_allocated_bytes
    beyond = sum(term.bytes for term in found.beyond)
    assert found.peak_allocated_bytes + beyond == found.process_bytes
    assert max(phase.allocated_bytes for phase in found.phases) == found.peak_allocated_bytes
    assert found.phase(found.peak_phase) == found.peak_allocated_bytes


def test_levels_are_in_order_and_the_live_one_is_a_plain_recount(plan):
    found = estimate(SHAPE, plan)
    resolved = resolve(plan, SHAPE.dtype)
    recording = record_on_one_gpu(SHAPE, resolved, record_step)
    events = with_workspaces(recording.events, resolved)
    assert found.peak_live_bytes == live_peak(events)
    assert found.resident_bytes <= found.peak_live_bytes <= found.peak_allocated_bytes
    assert found.peak_allocated_bytes <= found.peak_reserved_bytes < found.process_bytes


def test_resident_bytes_are_those_of_the_static_tables(plan):
    resolved = resolve(plan, SHAPE.dtype)
    workspace = cublas_workspace(resolved.torch, trains=resolved.trains).bytes
    assert estimate(SHAPE, plan).resident_bytes == resident_bytes(SHAPE, resolved, workspace)


def test_peaks_alone_are_those_of_the_estimate_without_the_allocator(plan):
    found = estimate(SHAPE, plan, allocator=False)
    peaks = estimate_peaks(SHAPE, resolve(plan, SHAPE.dtype))
    assert dict(peaks.by_phase) == {phase.name: phase.live_bytes for phase in found.phases}
    assert (peaks.bytes, peaks.phase) == (found.peak_allocated_bytes, found.peak_phase)
    assert found.peak_reserved_bytes is None


def value(numbers: str) -> Fraction:
    """`28 x 4/64 x 192 x 512` as a number."""
    product = Fraction(1)
    for factor in numbers.replace("4/(64 x 256)", "1/4096").replace(",", "").split(" x "):
        product *= Fraction(factor)
    return product


def test_numbers_of_a_formula_multiply_to_its_bytes(plan):
    for term in estimate(SHAPE, plan).terms:
        if "r512" in term.formula or term.name == SLACK:
            assert term.bytes % 512 == 0
        else:
            # A constant for each whole or begun 64 weights: less than one byte off a buffer.
            assert 0 <= term.bytes - value(term.numbers) < term.count


def test_formulas_are_of_the_sizes_that_a_tensor_has():
    symbols = Symbols(SHAPE, resolve(RunPlan(method="lora", batch=2, sequence=176), "bf16"))
    cases = {
        (2 * 192 * 512, Component.WEIGHTS): "2 h I",
        (192 * 512 // 2, Component.WEIGHTS): "1/2 h I",
        (192 * 512 // 64, Component.QUANTIZATION): "1/64 h I",
        (4 * 192 * 240, Component.OPTIMIZER): "4 h a",
        (4 * 16 * 80, Component.ADAPTERS): "4 k r",
        (4 * 352 * 1000, Component.LOSS): "4 N V",
        (2 * 352 * 6 * 176, Component.ACTIVATIONS): "2 N H S",
        (8 * 352, Component.INPUTS): "8 N",
    }
    for (nbytes, component), formula in cases.items():
        assert symbols.formula(nbytes, component)[0] == formula
    assert symbols.formula(12345, Component.WEIGHTS) is None


def test_of_several_readings_the_usual_one_is_written():
    """In a Llama of 1 B the MLP is 4 h wide and keys a quarter of h."""
    shape = ModelShape.from_config(json.loads((CONFIGS / "llama-3.2-1b.json").read_text()))
    plain = Symbols(shape, resolve(RunPlan(method="lora", sequence=1000), "bf16"))
    for component, nbytes, formula in (
        (Component.WEIGHTS, 2 * 2048 * 8192, "2 h I"),
        (Component.WEIGHTS, 2 * 2048 * 512, "2 h k"),
        (Component.ACTIVATIONS, 2 * 1000 * 8192, "2 N I"),
        (Component.ACTIVATIONS, 4 * 1000 * 2048, "4 N h"),
    ):
        assert plain.formula(nbytes, component)[0] == formula
    packed = Symbols(shape, resolve(RunPlan(sequence=1000), "bf16"))
    assert packed.formula(2048 * 8192 // 2, Component.WEIGHTS)[0] == "1/2 h I"
    assert packed.formula(4 * 2048 * 128256, Component.WEIGHTS)[0] == "4 h V"
    # 4/64 I r is as many bytes where r is 16, and 1/64 k k: no rank is in a constant, nor in a
    # table of codes, and matrices are as wide as the model.
    ranked = Symbols(shape, resolve(RunPlan(lora_rank=16), "bf16"))
    nested = ranked.values["h"] * ranked.values["I"] // (64 * 256) * 4
    assert ranked.formula(nested, Component.QUANTIZATION)[0] == "4/(64 x 256) h I"
    assert ranked.formula(4 * 16, Component.QUANTIZATION) is None
    assert ranked.formula(4 * ranked.values["h"] * 16, Component.ADAPTERS)[0] == "4 h r"


def test_full_training_in_bfloat16_holds_what_the_arithmetic_says():
    """Two bytes a weight, four of AdamW's moments; the loss holds log-probabilities and two
    gradients in float32 when its backward pass is at its widest."""
    plan = RunPlan(method="full", batch=2, sequence=512)
    found = estimate(SHAPE, plan)
    bytes_of = {term.name: term.bytes for term in found.components}
    stored = sum(rounded(2 * prod(sizes)) for _, sizes in named_parameters(SHAPE))
    assert bytes_of["weights"] == stored
    assert bytes_of["optimizer states"] == 2 * stored
    assert found.resident_bytes == pytest.approx(6 * SHAPE.parameters + 2 * 8_519_680, rel=1e-3)
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
    # A torch that gives workspaces back leaves them out of the sum.
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
    shape = ModelShape.from_config(json.loads((CONFIGS / "llama-3.2-1b.json").read_text()))
    found = estimate(shape, RunPlan(method="inference", sequence=16), allocator=False)
    weights = next(term for term in found.components if term.name == "weights")
    assert weights.bytes == 2 * shape.parameters
    widest = 2 * prod((shape.vocabulary, shape.hidden))
    assert any(term.bytes == widest and term.formula == "2 h V" for term in found.terms)


@pytest.mark.parametrize("loop", ["trainer", "manual", "script"])
def test_a_step_of_many_micro_batches_peaks_like_one_of_eight(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are recorded, whatever was asked for."""
    plan = RunPlan(method="lora", sequence=128, loop=loop, accumulation=8)
    few = estimate(SHAPE, plan)
    assert few.plan.accumulation == 8
    monkeypatch.setattr("qtui_core.memory.step.run.MICRO_BATCHES", 8)
    all_of_them = estimate(SHAPE, plan)
    assert len(all_of_them.events) > 2 * len(few.events)
    assert few.peak_live_bytes == all_of_them.peak_live_bytes
    assert few.peak_allocated_bytes == pytest.approx(all_of_them.peak_allocated_bytes, rel=2e-3)
    assert few.peak_reserved_bytes == pytest.approx(all_of_them.peak_reserved_bytes, rel=2e-2)
