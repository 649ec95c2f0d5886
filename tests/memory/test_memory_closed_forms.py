"""Formulas and the tape, which were derived independently, agree byte for byte."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from every import in_parts, left_out, over
from memory_closed_forms import (
    kept_by_checkpoints,
    loss_hump,
    loss_peak,
    optimizer_step,
    saved_by_layer,
    tied_gradients,
)
from memory_formula import evaluate, letters_of
from resident import resident_bytes

from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, LAYER, PHASE, Phase, rounded
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import parameter_count
from qtui_core.memory.step.run import record_step
from qtui_core.memory.tape.blocks.losses import fused_chunk

MEASURED = Path(__file__).parent / "measured"
VARIANTS = {
    "full, 16 bits": {"method": "full"},
    "full, 32 bits": {"method": "full", "dtype": "fp32"},
    "full, autocast": {"method": "full", "dtype": "fp32", "autocast": True},
    "lora": {"method": "lora"},
    "lora in 16 bits": {"method": "lora", "adapter_dtype": "bf16"},
    "lora, autocast": {"method": "lora", "autocast": True},
    "qlora, prepared, autocast": {"method": "qlora"},
    "qlora, prepared": {"method": "qlora", "autocast": False},
    "qlora": {"method": "qlora", "kbit_prep": "none", "autocast": False},
}
DROPOUT, LOOPS = [0.0, 0.1], ["trainer", "manual"]
TARGETS = [("all-linear",), ("q_proj", "v_proj"), ("o_proj", "down_proj"), ("k_proj", "up_proj")]


def llama(seed, **more):
    """A Llama whose sizes are all different, so that no two letters are equal."""
    dice = random.Random(seed)
    size = dice.choice([16, 32, 64])
    kv_heads = dice.choice([1, 2, 3])
    heads = kv_heads * dice.choice([1, 2, 4])
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8 * heads * dice.randrange(3, 9),
        "intermediate_size": 8 * dice.randrange(97, 150),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "num_hidden_layers": 3,
        "vocab_size": 90_000,
        "tie_word_embeddings": False,
    }
    return shape_from_config(config | more)


def plan_of(seed, **chosen):
    dice = random.Random(seed)
    sizes = {
        "batch": dice.choice([1, 2, 3]),
        "sequence": dice.choice([40, 72, 96, 129]),
        "lora_rank": dice.choice([4, 8, 24]),
        "checkpointing": False,
    }
    return resolve(RunPlan(**(sizes | chosen)), "bf16")


def saved_on_the_tape(shape, plan, layer=1):
    """Bytes that a layer has allocated in the forward pass and that are alive after it."""
    alive, at, phase = {}, None, ""
    for event in record_step(shape, plan, steps=1).events:
        if event[0] == PHASE:
            if event[1] == Phase.LOSS:
                break
            phase = event[1]
        elif event[0] == LAYER:
            at = event[1]
        elif event[0] == ALLOCATE and phase == Phase.FORWARD and at == layer:
            alive[event[1]] = event[2]
        elif event[0] == FREE:
            alive.pop(event[1], None)
    return sum(alive.values())


def peaks_on_the_tape(shape, plan):
    """The most bytes alive in each phase of the second step."""
    alive, live, phase, peaks = {}, 0, "", {}
    for event in record_step(shape, plan).events:
        if event[0] == ALLOCATE:
            alive[event[1]] = rounded(event[2])
            live += alive[event[1]]
        elif event[0] == FREE:
            live -= alive.pop(event[1])
        elif event[0] == PHASE:
            phase = event[1]
            peaks[phase] = 0
        peaks[phase] = max(peaks.get(phase, 0), live)
    return peaks


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_layer_saves(name, dropout, seed):
    targets = TARGETS[seed % len(TARGETS)]
    shape = llama(seed)
    plan = plan_of(seed, lora_dropout=dropout, lora_targets=targets, **VARIANTS[name])
    forms = saved_by_layer(shape, plan)
    assert sum(form.bytes for form in forms) == saved_on_the_tape(shape, plan)
    assert all(form.formula and form.reason for form in forms)


@in_parts(2)
@over("dropout", DROPOUT)
@over("loop", LOOPS)
@over("checkpointing", [False, True])
@over("name", VARIANTS)
def test_the_peak_in_the_loss(name, checkpointing, loop, dropout, parts):
    """With a vocabulary as large it is the peak of the backward pass. Rounding to 512 bytes, and
    counters of a few bytes, are all that the formulas leave out."""
    again = (checkpointing, [False, True])
    if left_out(parts, (name, VARIANTS), again, (loop, LOOPS), (dropout, DROPOUT)):
        return
    shape = llama(7)
    chosen = {"checkpointing": checkpointing, "loop": loop, "lora_dropout": dropout}
    plan = plan_of(7, **(VARIANTS[name] | chosen))
    forms = loss_peak(shape, plan, resident_bytes(shape, plan))
    measured = peaks_on_the_tape(shape, plan)[Phase.BACKWARD]
    assert sum(form.bytes for form in forms) == pytest.approx(measured, rel=3e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-fused"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_step_of_the_optimizer(dtype, optimizer):
    shape = llama(3)
    plan = plan_of(3, method="full", dtype=dtype, optimizer=optimizer)
    parts = optimizer_step(parameter_count(shape), plan)
    measured = peaks_on_the_tape(shape, plan)[Phase.OPTIMIZER]
    assert sum(form.bytes for form in parts) == pytest.approx(measured, rel=2e-3)


def test_a_tied_embedding_has_three_gradients_at_once():
    plan = plan_of(5, method="full", loop="trainer", batch=1, sequence=40)
    tied, apart = llama(5, tie_word_embeddings=True), llama(5)
    extra = [
        peaks_on_the_tape(s, plan)[Phase.BACKWARD] - resident_bytes(s, plan) for s in (tied, apart)
    ]
    gradients = 2 * (parameter_count(tied) - tied.vocabulary * tied.hidden)
    assert extra[0] == pytest.approx(tied_gradients(tied, plan).bytes + gradients, rel=5e-3)
    assert extra[1] < extra[0]


def measured(name):
    with (MEASURED / "measured_memory.csv").open() as file:
        return next(row for row in csv.DictReader(file) if row["id"] == name)


def test_the_older_loss_against_two_measured_rows():
    """LoRA on Mistral-7B with checkpointing, transformers 4.48.1 on an A100: what four sequences
    of 4,096 tokens more add to the peak is the loss and the inputs of the layers."""
    config = json.loads((MEASURED / "Mistral-7B-v0.1.json").read_text()) | {"sliding_window": None}
    shape = shape_from_config(config)
    peaks = [int(measured(f"fms-a100_80gb-{row}")["peak_alloc_bytes"]) for row in (32, 34)]
    forms = []
    for batch in (4, 8):
        chosen = {"batch": batch, "sequence": 4096, "checkpointing": True, "loss": "stock-4.48"}
        plan = plan_of(0, method="lora", **chosen)
        forms.append(loss_hump(shape, plan).bytes + kept_by_checkpoints(shape, plan).bytes)
    assert forms[1] - forms[0] == pytest.approx(peaks[1] - peaks[0], rel=1e-5)


def test_a_fused_loss_holds_logits_of_some_tokens_only():
    assert fused_chunk(16_384, 32_000, 4096) == 2048
    assert fused_chunk(5000, 32_000, 4096) == 1024
    assert fused_chunk(3, 32_000, 64) == 1
    shape = llama(1)
    fused, stock = (
        loss_hump(shape, plan_of(1, method="full", loop="trainer", loss=loss, sequence=4096)).bytes
        for loss in ("fused", "stock")
    )
    assert fused < stock / 20


# In float32 a full fine-tuning has its peak later, with all gradients.
@pytest.mark.parametrize("name", ["lora", "full, 16 bits", "qlora, prepared"])
def test_a_tiled_loss_holds_one_tile_and_gradients_of_float32(name):
    shape = llama(7)
    chosen = {"loss": "tiled", "loop": "trainer", "checkpointing": True}
    plan = plan_of(7, **(VARIANTS[name] | chosen))
    forms = loss_peak(shape, plan, resident_bytes(shape, plan))
    measured = peaks_on_the_tape(shape, plan)[Phase.BACKWARD]
    assert sum(form.bytes for form in forms) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 90},
        {"model_type": "qwen3"},
    ],
    ids=["GPT-2", "Qwen3, which norms queries and keys"],
)
def test_other_models_are_left_to_the_tape(config):
    shape = llama(0, **config)
    plan = plan_of(0, method="full")
    assert letters_of(shape, plan) is None
    assert saved_by_layer(shape, plan) is None
    assert loss_peak(shape, plan, 0) is None


def test_formulas_are_evaluated():
    assert evaluate("4Nh + 2N + 24", {"N": 3, "h": 5}) == 60 + 6 + 24
    assert evaluate("Nh", {"N": 3, "h": 5}) == 15
    with pytest.raises(KeyError):
        evaluate("4Nq", {"N": 3})
    for text in ("4N*h", "", "N +"):
        with pytest.raises(ValueError, match="no sum of products"):
            evaluate(text, {"N": 3, "h": 5})
