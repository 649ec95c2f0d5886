"""What a recording keeps of an estimate, compared with a recount of its events and with its own
sums."""

from dataclasses import replace

import pytest
from slow_timeline import composition
from test_live_recording import HEADER

from qtui_core.live.predict import predict, warning_of
from qtui_core.live.state import from_line, to_line
from qtui_core.memory import RunPlan, estimate
from qtui_core.memory.advice.fit import largest
from qtui_core.memory.devices.device import device_of_memory
from qtui_core.memory.replay.record import ALLOCATE, FREE, Component
from qtui_core.memory.replay.timeline import Timeline
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.models import open_model

PLANS = {
    "qlora": RunPlan(method="qlora", batch=1, sequence=128),
    "lora": RunPlan(method="lora", batch=2, sequence=64, accumulation=2),
    "full": RunPlan(method="full", batch=2, sequence=64, optimizer="paged-adamw8bit"),
    "inference": RunPlan(method="inference", batch=1, sequence=64),
}


@pytest.fixture(scope="module")
def shape():
    with open_model("demo") as model:
        return shape_from_config(model.config)


@pytest.mark.parametrize("name", PLANS)
def test_what_phases_hold_is_alive_in_the_timeline(shape, name):
    found = estimate(shape, PLANS[name])
    predicted = predict(found)
    timeline = found.timeline
    for phase in predicted.phases:
        span = [span for span in timeline.spans if span.name == phase.name][-1]
        end = composition(timeline.alive_at(span.stop - 1))
        assert phase.held == {component.value: nbytes for component, nbytes in end.items()}
        assert list(phase.held) == [component.value for component in end]
        assert sum(phase.held.values()) == timeline.live[span.stop - 1]
        assert sum(phase.peak_held.values()) == max(timeline.live[span.start : span.stop])
    assert {p.name: p.allocated_bytes for p in predicted.phases} == {
        p.name: p.allocated_bytes for p in found.phases
    }
    assert predicted.peak_allocated_bytes == found.peak_allocated_bytes
    reserved = predicted.peak_reserved_bytes
    beyond = predicted.context_bytes + predicted.paged_bytes
    assert predicted.process_bytes == reserved + beyond
    assert (predicted.paged_bytes > 0) == (PLANS[name].optimizer == "paged-adamw8bit")


@pytest.mark.parametrize("name", PLANS)
def test_tensors_alone_are_the_recording_without_workspaces(shape, name):
    found = estimate(shape, PLANS[name])
    without = []
    workspaces = set()
    for event in found.events:
        if event[0] == ALLOCATE and event[3].component is Component.WORKSPACES:
            workspaces.add(event[1])
        elif event[0] != FREE or event[1] not in workspaces:
            without.append(event)
    assert workspaces
    bare = Timeline(without)
    predicted = predict(found, tensors=True)
    for phase in predicted.phases:
        spans = [span for span in bare.spans if span.name == phase.name]
        assert phase.allocated_bytes == max(
            max(bare.live[span.start : span.stop]) for span in spans
        )
        last = spans[-1]
        assert sum(phase.peak_held.values()) == max(bare.live[last.start : last.stop])
        assert sum(phase.held.values()) == bare.live[last.stop - 1]
    assert predicted.peak_allocated_bytes == max(bare.live)
    assert predicted.peak_reserved_bytes is None
    assert "workspaces" not in predicted.curve.components
    assert predicted.resident_bytes + predict(found).workspace_bytes == found.resident_bytes


def test_the_curve_is_drawn_from_the_estimates(shape):
    found = estimate(shape, PLANS["qlora"])
    curve = predict(found).curve
    assert tuple(map(sum, zip(*curve.bytes, strict=True))) == found.curve.totals
    assert curve.spans[0][0] == "forward"
    assert predict(found, tensors=True).curve.positions == curve.positions


@pytest.mark.parametrize("tensors", [False, True])
def test_a_header_carries_it(shape, tensors):
    predicted = predict(
        estimate(shape, PLANS["full"]),
        tensors=tensors,
        warning="w",
        memory={"components": [{"bytes": 1}]},
    )
    header = replace(HEADER, predicted=predicted)
    assert from_line(to_line(header)) == header


def test_a_run_that_does_not_fit_is_offered_the_largest_batch_that_does(shape):
    plan = replace(PLANS["full"], batch=64, sequence=512)
    found = estimate(shape, plan)
    device = device_of_memory(found.process_bytes // 2)
    said = warning_of(found, device)
    best = largest(shape, plan, "batch", device).value
    assert 1 < best < 64
    assert said.startswith("This run will not fit: ")
    assert said.endswith(f"The largest batch that fits is {best}: --batch {best}.")
    again = estimate(shape, replace(plan, batch=best))
    assert warning_of(again, device) == ""
    # Memory of other processes counts as if it did not exist.
    whole = device_of_memory(found.process_bytes)
    used = found.process_bytes - device.capacity_bytes
    assert f"--batch {best}." in warning_of(found, whole, used)
    assert "that no other process uses" in warning_of(found, whole, used)


def test_a_run_that_fits_is_tight_or_never_fits(shape):
    found = estimate(shape, PLANS["full"])
    need = found.process_bytes
    assert warning_of(found, device_of_memory(need + found.uncertainty_bytes)) == ""
    assert warning_of(found, device_of_memory(need)).startswith("This run is tight")
    assert "Not even --batch 1" in warning_of(found, device_of_memory(1 << 20))
