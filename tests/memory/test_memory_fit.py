"""Verdicts near their thresholds, and the largest plan that fits, compared with trying every
value."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_memory_estimate import SHAPE

from qtui_core.errors import UsageError
from qtui_core.memory import RunPlan, estimate
from qtui_core.memory.advice.fit import fit_on, fits, largest, last_that_fits
from qtui_core.memory.devices.device import DEVICES, device_of_memory, find_device
from qtui_core.memory.estimate import PAGED, estimate_peaks
from qtui_core.memory.plan.run_plan import resolve_for
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import parameter_count

CONFIGS = Path(__file__).parent / "configs"
PLAN = RunPlan(method="full", batch=2, sequence=256)


def test_verdicts_change_where_they_should():
    found = estimate(SHAPE, PLAN)
    process, spread = found.process_bytes, found.uncertainty_bytes
    kept = found.peak_reserved_bytes - found.peak_allocated_bytes
    assert kept > 0
    for capacity, verdict in (
        (process + spread, "fits"),
        (process + spread - 1, "tight"),
        (process, "tight"),
        (process - kept, "tight"),
        (process - kept - 1, "no"),
    ):
        fit = fit_on(found, device_of_memory(capacity))
        assert (fit.verdict, fit.headroom_bytes) == (verdict, capacity - process)


def test_the_catalogue_is_judged_smallest_first():
    found = estimate(SHAPE, PLAN)
    verdicts = fits(found, DEVICES, lambda plan: estimate_peaks(SHAPE, plan))
    assert len(verdicts) == len(DEVICES) >= 25
    capacities = [fit.capacity_bytes for fit in verdicts]
    assert capacities == sorted(capacities)


def test_devices_without_flash_attention_are_charged_for_the_other_kernel():
    plan = RunPlan(method="full", batch=2, sequence=2048, loss="stock")
    found = estimate(SHAPE, plan)
    old, new = find_device("T4"), find_device("A10")
    judged = {
        fit.gpu: fit for fit in fits(found, (old, new), lambda plan: estimate_peaks(SHAPE, plan))
    }
    kernel = replace(found.plan, attention="efficient")
    more = estimate_peaks(SHAPE, kernel).bytes - estimate_peaks(SHAPE, found.plan).bytes
    assert more != 0
    assert judged[old.name].headroom_bytes == fit_on(found, old).headroom_bytes - more
    assert judged[new.name].headroom_bytes == fit_on(found, new).headroom_bytes


def test_a_run_that_goes_on_only_without_the_cache_is_tight_and_rows_of_others_do_not_change():
    shape = shape_from_config(json.loads((CONFIGS / "llama-3.2-1b.json").read_text()))
    plan = RunPlan(batch=2, sequence=6976, optimizer="adamw8bit")
    whole, device, large = estimate(shape, plan), device_of_memory(30 << 30), find_device("A40")
    assert whole.process_bytes > device.capacity_bytes
    found = estimate(shape, plan, device)
    assert found.retries
    assert found.process_bytes < device.capacity_bytes
    assert fit_on(found, device).verdict == "tight"
    (row,) = fits(found, (large,))
    assert row == fit_on(whole, large)


def test_paged_states_leave_a_gpu_that_is_full():
    plan = RunPlan(method="full", batch=1, sequence=256, optimizer="paged-adamw")
    found = estimate(SHAPE, plan)
    paged = sum(term.bytes for term in found.beyond if term.name == PAGED)
    kept = found.peak_reserved_bytes - found.peak_allocated_bytes
    assert paged >= parameter_count(SHAPE)
    least = found.process_bytes - kept - paged
    assert fit_on(found, device_of_memory(least)).verdict == "tight"
    assert fit_on(found, device_of_memory(least - 1)).verdict == "no"


@pytest.mark.parametrize("asked", ["T4", "A10"])
def test_rows_of_other_devices_do_not_depend_on_the_one_that_was_asked_for(asked):
    """On a T4, sdpa runs another kernel, which the A100 beside it would not use."""
    plan = resolve_for(SHAPE, RunPlan(method="full", batch=2, sequence=1024, loss="fused"))
    wanted = fits(estimate(SHAPE, plan), DEVICES, lambda plan: estimate_peaks(SHAPE, plan))
    device = find_device(asked)
    found = estimate(SHAPE, plan, device)
    rows = fits(found, DEVICES, lambda plan: estimate_peaks(SHAPE, plan, device), wanted=plan)
    kernel = replace(found.plan, attention="efficient")
    assert estimate_peaks(SHAPE, kernel).bytes != estimate_peaks(SHAPE, plan).bytes
    for row, want in zip(rows, wanted, strict=True):
        # What the allocator keeps is that of another kernel's blocks.
        assert abs(row.headroom_bytes - want.headroom_bytes) <= 64 << 20


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=300),
    st.integers(0, 10**11),
)
def test_the_last_that_fits_is_found_for_any_room_that_falls(steps, capacity):
    taken: list[int] = []
    rooms = []
    for step in steps:
        capacity -= step
        rooms.append(capacity)

    def room(value: int) -> int:
        taken.append(value)
        return rooms[value - 1]

    wanted = max((i for i, spare in enumerate(rooms, start=1) if spare >= 0), default=None)
    assert last_that_fits(room, len(rooms)) == wanted
    assert len(taken) <= 40


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(1, 10**7))
def test_few_guesses_are_needed_where_room_is_a_line(slope, spare, most):
    taken: list[int] = []

    def room(value: int) -> int:
        taken.append(value)
        return spare - slope * (value - 1)

    assert last_that_fits(room, most + 1) == min(most + 1, 1 + spare // slope)
    assert len(taken) <= 14


def test_where_a_plan_cannot_be_the_search_ends():
    assert last_that_fits(lambda value: 5 if value < 7 else None, 1000) == 6
    assert last_that_fits(lambda value: -1, 1000) is None


@pytest.mark.parametrize("knob", ["batch", "seq"])
def test_the_largest_fits_and_the_next_does_not(knob):
    device = device_of_memory(1 << 30)
    found = largest(SHAPE, PLAN, knob, device)
    field = "sequence" if knob == "seq" else "batch"
    assert found.value is not None
    assert found.value % found.step == 0
    fitting = estimate(SHAPE, replace(PLAN, **{field: found.value}), device)
    assert fit_on(fitting, device).verdict == "fits"
    assert fitting.process_bytes == found.process_bytes
    next_one = estimate(SHAPE, replace(PLAN, **{field: found.value + found.step}), device)
    assert fit_on(next_one, device).verdict != "fits"


def test_where_not_even_one_fits():
    found = largest(SHAPE, PLAN, "batch", device_of_memory(100 << 20))
    assert found.value is None
    assert found.process_bytes == estimate(SHAPE, replace(PLAN, batch=1)).process_bytes


def test_a_plan_that_cannot_be_is_refused_before_anything_is_searched():
    with pytest.raises(UsageError):
        largest(SHAPE, RunPlan(method="full", quant="nf4"), "batch", find_device("T4"))


def test_a_gpu_without_products_of_fp8_is_judged_by_the_unpacked_weights():
    config = json.loads((CONFIGS / "llama-3.2-1b.json").read_text())
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    shape = shape_from_config({**config, "quantization_config": settings})
    plan = resolve_for(shape, RunPlan(method="qlora"))
    devices = [find_device(name) for name in ("A100", "4090")]
    each = {device.name: estimate(shape, plan, device) for device in devices}
    unpacked, packed = each.values()
    assert unpacked.resident_bytes > packed.resident_bytes + (900 << 20)
    for asked in (None, *devices):
        found = estimate(shape, plan, asked)
        rows = fits(found, devices, partial(estimate_peaks, shape, device=asked), wanted=plan)
        for row, device in zip(rows, sorted(devices, key=lambda d: d.capacity_bytes), strict=True):
            wanted = fit_on(each[device.name], device).headroom_bytes
            # What the allocator keeps is that of the other weights' blocks.
            assert abs(row.headroom_bytes - wanted) <= 128 << 20, (asked, device.name)
