"""Every value of every option of a plan, at batch 1 and 2: it is estimated, or refused in a
sentence; a trace at batch 2 and a live step on a CPU at batch 1 hold what the estimate says, or say
why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from drift import Case, compare
from small_models import CONFIGS

from qtui_core.errors import UsageError
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.options import PlanOption, RunPlan, options_of
from qtui_core.memory.plan.run_plan import plan_as_run, resolve_for
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.training.limits import check_runnable, check_traceable

CONFIG = {"model_type": "llama", **CONFIGS["llama"], "torch_dtype": "bfloat16"}
SHAPE = shape_from_config(CONFIG)
BASES = (
    RunPlan(method="qlora", sequence=96, lora_rank=8, autocast=False),
    RunPlan(method="full", sequence=96, autocast=False),
    RunPlan(method="inference", sequence=96, generate=4),
)

#: Options whose values, as far as `values_of` has them, leave the peak of so small a model on one
#: GPU as it is: tests of their own show what they do.
TOLD_ELSEWHERE = (
    "sequence", "generate", "autocast_dtype", "quant_storage", "segments", "torch", "zero",
    "tensor_parallel", "pipeline_parallel", "image_tokens",
)  # fmt: skip


def values_of(option: PlanOption) -> tuple[Any, ...]:
    if option.kind == "switch":
        return (False, True)
    if option.kind in ("whole", "share"):
        return option.steps[:2] if option.name != "sequence" else ()
    return option.allowed or option.steps or (option.default,)


def plans() -> Iterator[RunPlan]:
    """Each value in the first base in which the option counts and the value is possible, else in
    the first base."""
    for option in options_of(RunPlan):
        for value in values_of(option):
            if option.name in ("method", "batch", "sequence", "lora_rank", "generate"):
                yield replace(BASES[2 if option.name == "generate" else 0], **{option.name: value})
                continue
            for base in BASES:
                plan = replace(base, **{option.name: value})
                if option.counts(resolve_for(SHAPE, base)) and not refusal(plan):
                    yield plan
                    break
            else:
                yield replace(BASES[0], **{option.name: value})


def refusal(plan: RunPlan) -> str:
    """Why the plan is impossible, as a sentence; empty if it is possible."""
    return said_by(lambda: plan_as_run(SHAPE, resolve_for(SHAPE, plan), None))


def said_by(check: Callable[[], object]) -> str:
    try:
        check()
    except UsageError as error:
        return str(error)
    return ""


def otherwise_on_a_cpu(plan: RunPlan) -> bool:
    """What a CPU does otherwise, and cpu_kernels.py does not tell: masks, autocast (peft asks for
    that of CUDA), the product of LLM.int8, tables of 8-bit states, which begin on the host. The
    installed transformers repeats no keys by hand."""
    eight = plan.quant == "int8" or plan.optimizer == "adamw8bit"
    return plan.padding_mask or bool(plan.autocast) or eight or plan.repeat_kv


def cases() -> Iterator[Case]:
    for plan, batch in product(plans(), (1, 2)):
        asked = plan if plan.batch not in (1, 2) else replace(plan, batch=batch)
        said = refusal(asked)
        assert not said or said.endswith("."), said
        if said:
            continue
        resolved = plan_as_run(SHAPE, resolve_for(SHAPE, asked), None)
        assert estimate(SHAPE, asked, allocator=False).peak_allocated_bytes
        if resolved.gpus > 1:
            continue  # a trace and a run are of one
        chosen = {k: v for k, v in vars(asked).items() if v != getattr(RunPlan(), k)}
        for device, said in {
            "cuda": said_by(lambda resolved=resolved: check_traceable(resolved)),
            "cpu": said_by(lambda resolved=resolved: check_runnable(resolved, "cpu")),
        }.items():
            assert not said or said.endswith("."), said
            other = device == "cpu" and otherwise_on_a_cpu(resolved)
            if not said and not other and asked.batch == {"cuda": 2, "cpu": 1}[device]:
                steps = 1 if device == "cuda" else 2
                yield Case(f"{device}: {chosen}", CONFIG, chosen, device, steps)


def peaks(base: RunPlan, option: PlanOption) -> set[int]:
    """Of a base with each value of an option that is possible there."""
    varied = [base, *(replace(base, **{option.name: value}) for value in values_of(option))]
    return {
        estimate(SHAPE, plan, allocator=False).peak_allocated_bytes
        for plan in varied
        if not refusal(plan)
    }


def test_every_option_is_acted_on() -> None:
    """Its values differ in some base: a row that no code reads changes nothing anywhere."""
    idle = {
        option.name
        for option in options_of(RunPlan)
        if option.name not in TOLD_ELSEWHERE and all(len(peaks(b, option)) < 2 for b in BASES)
    }
    assert not idle


@pytest.mark.slow
def test_what_every_value_of_every_option_takes() -> None:
    unlike = []
    for case, found in compare({case.name: case for case in cases()}.values()):
        if found.failed:
            unlike.append((case.name, found.failed))
        elif found.standing[0] != found.standing[1] or abs(found.worst_phase) > 1:
            unlike.append((case.name, found.standing, found.worst_phase, found.difference))
    assert not unlike, "\n".join(map(str, unlike))
