"""What is recommended to make a run fit does so, according to an estimate of the changed plan on
that device."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from every import in_parts, left_out, over
from test_memory_advice import parse
from test_memory_estimate import SHAPE, SMALL
from told_truly import faults_of

from qtui_core.memory import RunPlan, estimate
from qtui_core.memory.advice.fit import Advice, advise, fit_on, fits, remedy, smallest_again
from qtui_core.memory.advice.report import conclude_memory, report_of_plan
from qtui_core.memory.devices.device import DEVICES, device_of_memory, find_device
from qtui_core.memory.estimate import estimate_peaks
from qtui_core.memory.plan.run_plan import resolve
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.quantities import format_bytes

CONFIGS = Path(__file__).parent / "configs"
SHARES = [0.5, 0.9, 0.999]
#: The room of a GPU over what the run needs; None for no GPU.
ROOMS = [None, 0.5, 0.98, 3.0]
PLANS = (
    RunPlan(method="full", batch=4, sequence=512),
    RunPlan(method="full", batch=2, sequence=512, optimizer="adamw-fused"),
    RunPlan(batch=4, sequence=512),
    RunPlan(method="inference", batch=4, sequence=512),
)


@in_parts(4)
@over("plan", PLANS, ids=lambda plan: f"{plan.method}-{plan.optimizer}")
@over("share", SHARES)
def test_a_remedy_makes_it_fit(plan, share, parts):
    if left_out(parts, (plan, PLANS), (share, SHARES)):
        return
    whole = estimate(SHAPE, plan).process_bytes
    device = device_of_memory(int(whole * share))
    found = estimate(SHAPE, plan, device)
    fit = fit_on(found, device)
    assert fit.verdict != "fits"
    advice = advise(found, lambda plan: estimate_peaks(SHAPE, plan, device))
    change = remedy(found, fit, advice, partial(estimate, SHAPE))
    if change is None:
        # The uncertainty of a context is larger than what these small runs take without it.
        return
    assert fit_on(estimate(SHAPE, change.plan, device), device).verdict == "fits"
    assert change.saves_bytes > 0
    assert change.change


@in_parts(8)
@over("plan", PLANS, ids=lambda plan: f"{plan.method}-{plan.optimizer}")
@over("share", ROOMS)
def test_the_sentence_is_true_of_the_plan_that_it_advises(plan, share, parts):
    """Every figure of it is found again by estimates; what it advises is typed and estimated."""
    if left_out(parts, (plan, PLANS), (share, ROOMS)):
        return
    whole = estimate(SHAPE, plan)
    device = None if share is None else device_of_memory(int(whole.process_bytes * share))
    model = ModelDescription("m", "here", SMALL, "LlamaForCausalLM", quantization="")
    asked = resolve(plan, SHAPE.dtype)
    report = report_of_plan(model, SHAPE, asked, device, "batch", asked=plan, wanted=asked)
    found, said = report.estimate, conclude_memory(report)
    assert not faults_of(said), said
    assert f"needs {format_bytes(found.process_bytes)} on the GPU" in said
    part = re.search(r", (\d+)% of it", said)
    assert int(part[1]) <= 100
    if device is None:
        assert " GPU of the catalogue" in said
        smallest = re.search(r"that holds it is (.*?)\. ", said)[1]
        fitting = [d for d in DEVICES if fit_on(estimate(SHAPE, asked, d), d).verdict == "fits"]
        assert find_device(smallest).capacity_bytes == min(d.capacity_bytes for d in fitting)
    else:
        spare = device.capacity_bytes - found.process_bytes
        if ("It fits" in said) or ("too much" in said):
            assert format_bytes(abs(spare)) in said
        assert ("It fits" in said) == (spare >= found.uncertainty_bytes and not found.retries)
    if most := re.search(r"largest that fits is --batch ([\d,]+)", said):
        batch = int(most[1].replace(",", ""))
        for size, verdict in ((batch, True), (batch + 1, False)):
            there = estimate(SHAPE, replace(asked, batch=size), device)
            assert (fit_on(there, device).verdict == "fits") == verdict
    for change, words, saved in re.findall(
        r"`([^`]+)` (would save|saves)(?: most[^:,]*[:,])? ([\d.,]+ [KMGT]?i?B)", said
    ):
        typed = " ".join(options for _, options in asked.grouped())
        after = parse(f"{typed} {change}", asked)
        if change.startswith("--segments"):
            continue  # it saves reserved bytes
        before, there = (estimate(SHAPE, p, device, allocator=False) for p in (asked, after))
        assert saved == format_bytes(before.peak_allocated_bytes - there.peak_allocated_bytes)
        if "make it fit" in said:
            assert fit_on(estimate(SHAPE, after, device), device).verdict == "fits", words


@pytest.mark.parametrize(
    ("options", "device"),
    [
        ({"method": "full", "dtype": "fp32", "checkpointing": True, "optimizer": "adamw-fused"}, 0),
        ({"quant": "int8", "loss": "tiled"}, 0),
        ({"quant": "int8", "loss": "tiled"}, 0.5),
        ({"method": "inference"}, 0),
        ({"method": "inference"}, 0.5),
        ({"loss": "tiled", "checkpointing": True, "batch": 1}, 0),
    ],
)
def test_advice_that_does_not_train_the_same_names_its_cost(options, device):
    plan = resolve(RunPlan(**{"batch": 4, "sequence": 512} | options), SHAPE.dtype)
    found = estimate(SHAPE, plan)
    on = device_of_memory(int(found.process_bytes * device)) if device else None
    model = ModelDescription("m", "here", SMALL, "LlamaForCausalLM", quantization="")
    report = report_of_plan(model, SHAPE, plan, on, asked=plan, wanted=plan)
    said = conclude_memory(report)
    advised = next(
        a for a in (report.remedy, *report.advice) if a is not None and f"`{a.change}`" in said
    )
    same = plan.trains and plan.trains_like(advised.plan)
    assert ("what trains the same" in said or device > 0) if same else f"({advised.cost})" in said


def test_what_makes_it_fit_and_saves_nothing_is_not_said_to_save():
    plan = resolve(RunPlan(batch=4, sequence=512), SHAPE.dtype)
    model = ModelDescription("m", "here", SMALL, "LlamaForCausalLM", quantization="")
    on = device_of_memory(estimate(SHAPE, plan).process_bytes)
    report = report_of_plan(model, SHAPE, plan, on, asked=plan, wanted=plan)
    grown = replace(plan, segments="expandable")
    saves_nothing = Advice("--segments expandable", grown, 0, "nothing", "loss", {})
    said = conclude_memory(replace(report, remedy=saves_nothing))
    assert said.endswith("`--segments expandable` would make it fit.")


def test_what_saves_most_is_not_offered_where_it_is_not_enough():
    """Paged states stay on the GPU as long as there is room, so a full GPU remains tight with
    them."""
    shape = shape_from_config(json.loads((CONFIGS / "mistral-7b-v0.1.json").read_text()))
    plan = RunPlan(method="full", batch=8, sequence=256, optimizer="adamw-fused")
    device = device_of_memory(40838 << 20)
    found = estimate(shape, plan, device)
    advice = advise(found, lambda plan: estimate_peaks(shape, plan, device))
    needed = found.uncertainty_bytes - fit_on(found, device).headroom_bytes
    paged = next(one for one in advice if "paged" in one.change)
    assert paged.saves_bytes > needed
    assert fit_on(estimate(shape, paged.plan, device), device).verdict != "fits"
    change = remedy(found, fit_on(found, device), advice, partial(estimate, shape))
    assert change is None or "paged" not in change.change


def test_segments_that_grow_come_first_where_only_the_cache_is_in_the_way():
    shape = shape_from_config(json.loads((CONFIGS / "gpt2-medium.json").read_text()))
    plan = RunPlan(method="full", batch=4, sequence=1024)
    native, grown = (
        estimate(shape, replace(plan, segments=segments)) for segments in ("native", "expandable")
    )
    needed = grown.process_bytes + grown.uncertainty_bytes
    assert needed < native.process_bytes
    device = device_of_memory((needed + native.process_bytes) // 2)
    found = estimate(shape, plan, device)
    fit = fit_on(found, device)
    assert fit.verdict == "tight"
    change = remedy(found, fit, (), partial(estimate, shape))
    assert change.change == "--segments expandable"


def test_the_smallest_that_fits_is_judged_by_an_estimate_on_it():
    shape = shape_from_config(json.loads((CONFIGS / "llama-3.1-8b.json").read_text()))
    plan = RunPlan(method="full", gpus=8, zero=3, checkpointing=True)
    found = estimate(shape, plan)
    rows = fits(found, DEVICES)
    judged = smallest_again(found, rows, partial(estimate, shape))
    small = next(fit for fit in judged if fit.verdict == "fits")
    device = find_device(small.gpu)
    assert fit_on(estimate(shape, plan, device), device).verdict == "fits"
    assert [fit.gpu for fit in judged] == [fit.gpu for fit in rows]
