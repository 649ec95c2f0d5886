"""Advice: what each change saves is the difference between the estimates of both plans."""

from __future__ import annotations

import functools
import itertools
from dataclasses import fields, replace

import click
import pytest
from every import in_parts
from shorthands import allocated_in
from test_memory_estimate import SHAPE

from qtui.cli.plan_options import plan_options
from qtui_core.memory import RunPlan, estimate
from qtui_core.memory.advice.fit import FRAGMENTATION, Advice, advise, candidates, cures, worthwhile
from qtui_core.memory.estimate import estimate_peaks
from qtui_core.memory.plan.options import grouped_options, options_of
from qtui_core.memory.plan.run_plan import resolve
from qtui_core.memory.replay.timeline import Peaks

PLANS = (
    RunPlan(batch=4, sequence=512),
    RunPlan(method="full", batch=3, sequence=512, loop="manual"),
    RunPlan(method="lora", sequence=512, attention="eager", lora_dropout=0.1, adapter_dtype="fp32"),
    RunPlan(method="full", dtype="fp32", sequence=512),
    RunPlan(method="inference", batch=2, sequence=512),
)


@functools.cache
def peaks(plan: RunPlan) -> Peaks:
    return estimate_peaks(SHAPE, plan)


@functools.cache
def advised(plan: RunPlan) -> tuple[Advice, ...]:
    """What is advised for a plan, for all that is asked of it."""
    return tuple(advise(estimate(SHAPE, plan), peaks))


def parse(options: str, plan: RunPlan) -> RunPlan:
    """The resolved plan that the command line makes of options."""
    made: list[RunPlan] = []

    @click.command()
    @plan_options
    def command(plan: RunPlan) -> None:
        made.append(plan)

    command.main(options.split(), standalone_mode=False)
    return resolve(made[0], SHAPE.dtype)


@in_parts(2)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.method)
def test_savings_are_the_difference_of_two_estimates(plan, parts):
    advice = advised(plan)
    assert advice
    before = estimate(SHAPE, plan, allocator=False)
    for one in advice[PLANS.index(plan) % parts :: parts]:
        after = estimate(SHAPE, one.plan, allocator=False)
        assert one.saves_bytes == before.peak_allocated_bytes - after.peak_allocated_bytes
        assert one.peak_phase == after.peak_phase
        for phase in before.phases:
            saved = allocated_in(before, phase.name) - allocated_in(after, phase.name)
            assert one.saves_by_phase[phase.name] == saved
    assert [a.saves_bytes for a in advice] == sorted((a.saves_bytes for a in advice), reverse=True)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.method)
def test_a_change_can_be_typed(plan):
    """The options of the plan, followed by those of the change, give the changed plan."""
    before = resolve(plan, SHAPE.dtype)
    typed = " ".join(options for _, options in before.grouped())
    assert parse(typed, before) == before
    for one in advised(plan):
        assert parse(f"{typed} {one.change}", before) == one.plan


def test_every_field_of_a_plan_has_an_option():
    shown = [option.name for options in grouped_options(RunPlan).values() for option in options]
    assert sorted(shown) == sorted(field.name for field in fields(RunPlan))
    assert PLANS[0].change_to(replace(PLANS[0], checkpointing=False)) == "--no-checkpointing"


#: An option that changes what is learned -> two of its values.
LEARNED = {
    "method": ("lora", "qlora"),
    "sequence": (512, 1024),
    "image_tokens": (0, 64),
    "dtype": ("fp32", "bf16"),
    "autocast": (False, True),
    "autocast_dtype": ("bf16", "fp16"),
    "quant": ("nf4", "nf4-dq"),
    "kv_dtype": ("auto", "fp8"),
    "kbit_prep": ("all", "none"),
    "lora_rank": (16, 8),
    "lora_targets": (("all-linear",), ("q_proj",)),
    "lora_dropout": (0.0, 0.1),
    "adapter_dtype": ("fp32", "bf16"),
    "optimizer": ("adamw", "adamw8bit"),
    "kernels": ("torch", "fused"),
    "padding_mask": (False, True),
    "gpus": (1, 2),
    "generate": (0, 64),
    "accumulation": (1, 2),
    "batch": (1, 2),
}


@pytest.mark.parametrize("option", options_of(RunPlan), ids=lambda option: option.name)
def test_what_changes_what_is_learned_does_not_train_the_same(option):
    values = LEARNED.get(option.name)
    for one, other in itertools.pairwise(values or option.allowed or option.steps):
        plans = [replace(PLANS[0], **{option.name: value}) for value in (one, other)]
        assert plans[0].trains_like(plans[1]) == (values is None), (one, other)


def test_a_batch_in_parts_pages_and_a_fused_kernel_train_the_same():
    plan = RunPlan(batch=4, optimizer="adamw8bit")
    assert plan.trains_like(replace(plan, batch=1, accumulation=4))
    assert plan.trains_like(replace(plan, optimizer="paged-adamw8bit"))
    assert RunPlan().trains_like(RunPlan(optimizer="adamw-fused"))
    # bitsandbytes keeps float32 moments of any parameter.
    assert not RunPlan().trains_like(RunPlan(optimizer="paged-adamw"))


def test_int8_is_checkpointed_in_the_older_way_which_keeps_no_inputs_of_products():
    for checkpointing in (True, False):
        plan = RunPlan(quant="int8", batch=4, sequence=512, checkpointing=checkpointing)
        best = next(a for a in advise(estimate(SHAPE, plan), peaks) if "--reentrant" in a.change)
        assert best.saves_bytes > 0
        assert resolve(plan, SHAPE.dtype).trains_like(best.plan)
        assert best.plan.checkpointing
        assert not any("--reentrant" in a.change for a in advise(estimate(SHAPE, best.plan), peaks))


def test_changes_that_cannot_be_are_left_out():
    plan = RunPlan(method="full", dtype="fp32", sequence=512, attention="sdpa")

    def refuses_lora(changed: RunPlan) -> Peaks:
        from qtui_core.errors import UsageError

        if changed.adapts:
            raise UsageError("No module is of that name.")
        return peaks(changed)

    methods = {one.plan.method for one in advise(estimate(SHAPE, plan), refuses_lora)}
    assert methods == {"full"}


def test_the_obvious_is_among_the_candidates():
    full = resolve(RunPlan(method="full", batch=8, loop="manual"), "bf16")
    changes = [changed for changed, _ in candidates(SHAPE, full)]
    for wanted in (
        {"checkpointing": True},
        {"loss": "tiled"},
        {"loop": "trainer"},
        {"optimizer": "adamw8bit"},
        {"batch": 4, "accumulation": 2},
        {"method": "lora"},
    ):
        assert wanted in changes
    eight = replace(full, gpus=8)
    assert {"zero": 3} in [changed for changed, _ in candidates(SHAPE, eight)]
    inference = resolve(RunPlan(method="inference"), "bf16")
    assert {"quant": "nf4-dq"} in [changed for changed, _ in candidates(SHAPE, inference)]


def test_cures_save_most_in_their_phase_and_train_the_same_where_that_helps():
    plan = RunPlan(method="full", batch=8, sequence=512)
    found = estimate(SHAPE, plan)
    advice = advise(found, peaks)
    by_kind = {cure.kind: cure for cure in cures(found, advice)}
    assert set(by_kind) >= {"forward", "loss", "backward", "optimizer", FRAGMENTATION}
    for kind, cure in by_kind.items():
        assert cure.symptom
        if kind == FRAGMENTATION:
            continue
        assert cure.needs_bytes == allocated_in(found, kind)
        same = [a for a in advice if found.plan.trains_like(a.plan)]
        worth = allocated_in(found, kind) / 500
        helping = [a.saves_by_phase[kind] for a in same if a.saves_by_phase[kind] >= worth]
        if helping:
            assert cure.saves_bytes == max(helping)
    # The optimizer step needs AdamW's moments, which a smaller batch does not reduce.
    assert "--optimizer" in by_kind["optimizer"].change
    assert "--batch" not in by_kind["optimizer"].change


def test_fragmentation_is_what_the_allocator_keeps_and_expandable_segments_cure():
    found = estimate(SHAPE, RunPlan(method="full", batch=3, sequence=1000))
    other = estimate(SHAPE, replace(found.plan, segments="expandable"))
    cure = cures(found, ())[-1]
    assert cure.kind == FRAGMENTATION
    assert cure.needs_bytes == found.peak_reserved_bytes - found.peak_allocated_bytes
    assert cure.saves_bytes == max(0, found.peak_reserved_bytes - other.peak_reserved_bytes)


def test_small_savings_are_not_worth_a_line():
    found = estimate(SHAPE, PLANS[0])
    advice = advise(found, peaks)
    worth = worthwhile(advice, found.peak_allocated_bytes)
    assert worth == tuple(a for a in advice if a.saves_bytes >= found.peak_allocated_bytes / 500)
    assert len(worth) < len(advice)
