"""The estimate of one step alone, compared with the whole estimate."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from every import in_parts, left_out, over

from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import Device, find_device
from qtui_core.memory.estimate import Estimate, estimate
from qtui_core.memory.estimate import quick_estimate as quick_estimate_resolved
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape

CONFIGS = Path(__file__).parent / "configs"
PLANS = {
    "qlora": RunPlan(batch=2, sequence=512),
    "full": RunPlan(method="full", sequence=512, accumulation=2),
    "lora held": RunPlan(method="lora", sequence=256, loop="manual", optimizer="adamw8bit"),
    "lora without": RunPlan(method="lora", sequence=512, lora_dropout=0.1, loss="stock-4.48"),
    "inference": RunPlan(method="inference", sequence=512),
    "sharded": RunPlan(method="full", sequence=512, gpus=4, zero=3, checkpointing=True),
}
MODELS = ("qwen2.5-1.5b", "gpt2-medium", "llama-3.2-1b")
STEP = ("forward", "loss", "backward", "optimizer", "between steps")


def shape_of(name: str) -> ModelShape:
    return shape_from_config(json.loads((CONFIGS / f"{name}.json").read_text()))


def quick_estimate(shape: ModelShape, plan: RunPlan, device: Device | None = None) -> Estimate:
    return quick_estimate_resolved(shape, resolve_for(shape, plan), device)


@in_parts(3)
@over("plan", PLANS)
@over("model", MODELS)
def test_it_is_the_estimate_of_a_step(model: str, plan: str, parts: int) -> None:
    """Peaks of all phases, resident bytes and the peak's composition, to the byte."""
    if left_out(parts, (plan, PLANS), (model, MODELS)):
        return
    shape = shape_of(model)
    drawn = quick_estimate(shape, PLANS[plan])
    whole = estimate(shape, PLANS[plan], allocator=False)
    live = [(phase.name, phase.live_bytes) for phase in whole.phases]
    assert drawn.plan == whole.plan
    assert [(phase.name, phase.live_bytes) for phase in drawn.phases] == live
    assert drawn.process_bytes == whole.process_bytes
    reached = drawn.curve.totals
    assert max(reached) == max(most for name, most in live if name in STEP)
    assert reached[-1] >= whole.resident_bytes
    assert [span.name for span in drawn.curve.spans] == [s.name for s in whole.curve.spans]
    at, there = reached.index(max(reached)), whole.curve.totals
    if max(reached) == max(there):
        same = dict(zip(whole.curve.components, whole.curve.bytes, strict=True))
        peak = there.index(max(there))
        for component, row in zip(drawn.curve.components, drawn.curve.bytes, strict=True):
            # A component that only exists at another time has no row in one of them.
            assert row[at] == (same[component][peak] if component in same else 0)


def test_positions_rise_within_the_spans() -> None:
    drawn = quick_estimate(shape_of("llama-3.2-1b"), RunPlan(sequence=512))
    positions = drawn.curve.positions
    assert all(low < high for low, high in pairwise(positions))
    spans = drawn.curve.spans
    assert spans[0].start <= positions[0]
    assert positions[-1] < spans[-1].stop
    assert [span.stop for span in spans[:-1]] == [span.start for span in spans[1:]]


def test_a_device_without_flash_attention_takes_the_other_kernel() -> None:
    shape, plan = shape_of("llama-3.2-1b"), RunPlan(sequence=512)
    t4 = find_device("T4")
    assert quick_estimate(shape, plan, t4).plan.attention == "efficient"
    whole = estimate(shape, plan, t4, allocator=False)
    assert quick_estimate(shape, plan, t4).peak_live_bytes == whole.peak_live_bytes


def test_a_plan_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="positions"):
        quick_estimate(shape_of("gpt2-medium"), RunPlan(sequence=4096))
