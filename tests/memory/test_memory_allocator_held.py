"""What the allocator alone is told of a run: memory that is freed and not to be had yet, and a
device that was full for a moment."""

from __future__ import annotations

from qtui_core.memory.allocator import (
    AllocatorSettings,
    simulate,
)
from qtui_core.memory.estimate import estimate
from qtui_core.memory.on_device import for_allocator
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.record import ALLOCATE, EMPTY_CACHE, FREE, HAND_BACK, HOLD_BACK, PHASE
from qtui_core.memory.shape import ModelShape

MIB = 1 << 20
SHAPE = ModelShape.from_config(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
)
#: Bytes of the logits of two sequences of 512 tokens.
COPY = 4 * 2 * 512 * 32000


def test_what_is_held_back_is_not_allocated_and_no_one_gets_it():
    events = [
        (ALLOCATE, 1, 100 * MIB, "logits"),
        (ALLOCATE, 2, 100 * MIB, "copy"),
        (HOLD_BACK, 1),
        (PHASE, "backward"),
        (ALLOCATE, 3, 100 * MIB, "gradient"),
    ]
    run = simulate([*events, (HAND_BACK,), (FREE, 2), (FREE, 3)])
    assert run.phases[0].end.allocated == 100 * MIB
    assert run.peak.allocated == 200 * MIB
    assert run.peak.reserved == 300 * MIB
    assert run.end.allocated == 0
    again = simulate([*events, (HAND_BACK,), (ALLOCATE, 4, 100 * MIB, "next")])
    assert again.peak.reserved == 300 * MIB


def test_a_full_device_gets_what_was_held_back():
    events = [
        (ALLOCATE, 1, 100 * MIB, "logits"),
        (ALLOCATE, 2, 100 * MIB, "copy"),
        (HOLD_BACK, 1),
        (ALLOCATE, 3, 100 * MIB, "gradient"),
        (HAND_BACK,),
    ]
    run = simulate(events, AllocatorSettings(capacity=250 * MIB))
    assert run.out_of_memory is None
    assert run.retries == 1
    assert run.peak.reserved == 200 * MIB


def test_a_run_goes_on_with_what_a_full_device_left_it():
    events = [
        (ALLOCATE, 1, 60 * MIB, "first"),
        (FREE, 1),
        (ALLOCATE, 2, 80 * MIB, "second"),
        (FREE, 2),
    ]
    roomy = simulate(events)
    assert roomy.lasting_reserved == roomy.peak.reserved == 140 * MIB
    full = simulate(
        [*events, (ALLOCATE, 3, 90 * MIB, "third")], AllocatorSettings(capacity=150 * MIB)
    )
    assert full.retries == 1
    assert full.peak.reserved == 140 * MIB
    assert full.lasting_reserved == 90 * MIB


def test_a_run_goes_on_with_no_less_than_its_next_step_allocates():
    events = [
        (ALLOCATE, 1, 120 * MIB, "peak"),
        (FREE, 1),
        (ALLOCATE, 2, 30 * MIB, "cut from it"),
        (FREE, 2),
        (ALLOCATE, 3, 40 * MIB, "held"),
        (ALLOCATE, 4, 60 * MIB, "held too"),
        (FREE, 3),
        (FREE, 4),
        (ALLOCATE, 5, 130 * MIB, "larger than the segment"),
        (FREE, 5),
        (EMPTY_CACHE,),
        (ALLOCATE, 6, 20 * MIB, "little"),
    ]
    run = simulate(events, AllocatorSettings(capacity=150 * MIB))
    assert run.retries == 1
    assert run.end.reserved == 20 * MIB
    assert run.lasting_reserved == run.peak.allocated == 130 * MIB


def test_a_loss_in_place_keeps_its_logits_in_float32_till_the_backward_pass_is_over():
    plan = RunPlan(method="lora", batch=2, sequence=512, loss="in-place", kernels="fused")
    found = estimate(SHAPE, plan)
    events = for_allocator(found.events, found.plan)
    held = [event for event in events if event[0] == HOLD_BACK]
    assert len(held) == 2  # once a step
    assert sum(event[0] == HAND_BACK for event in events) == 2
    freed = simulate(found.events)
    assert found.peak_allocated_bytes == freed.peak.allocated
    # One more copy, in whole 2 MiB.
    assert found.peak_reserved_bytes is not None
    assert COPY <= found.peak_reserved_bytes - freed.peak.reserved <= COPY + 4 * MIB


def test_other_losses_hold_nothing_back():
    plan = RunPlan(method="lora", batch=2, sequence=512, loss="stock-4.48")
    found = estimate(SHAPE, plan)
    assert for_allocator(found.events, found.plan) is found.events
