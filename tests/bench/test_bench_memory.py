"""The time of an estimate for what changes with a knob, compared with the simulation of the largest
model's allocator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from racing import race
from shorthands import record_peaks

from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.run import record_all

pytestmark = pytest.mark.bench

CONFIGS = Path(__file__).parents[1] / "memory" / "configs"
#: Of Llama 3.1 405B.
LARGEST = {
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
}


def shape_of(name: str, **changes: object) -> ModelShape:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return shape_from_config({**config, **changes})


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_knob_replays_layers(method):
    """The time to estimate a changed setting does not grow with the number of layers, and the
    largest model's allocator is simulated in proportion to its events."""
    small = shape_of("llama-3.1-8b")
    large = shape_of("llama-3.1-8b", **LARGEST)
    plan = RunPlan(method=method, sequence=4096)
    known = resolve(plan, small.dtype)
    turns = iter(range(1, 1 << 20))

    def turned(shape: ModelShape) -> object:
        return record_peaks(shape, replace(known, batch=next(turns)))

    best = race(
        {
            "knob": lambda: turned(small),
            "knob, largest": lambda: turned(large),
            "estimate": lambda: estimate(small, plan, allocator=False),
            "largest": lambda: estimate(large, plan, allocator=False),
            "largest, allocator": lambda: estimate(large, plan),
            "largest, all layers": lambda: record_all(large, known),
        },
        rounds=5,
    )
    print()
    for name, seconds in best.items():
        print(f"{method} {name:20} {1e3 * seconds:7.1f} ms")
    assert best["knob, largest"] <= 1.5 * best["knob"]
    assert best["largest, allocator"] <= 1.5 * best["largest, all layers"]
    assert best["knob"] <= best["largest, all layers"] / 8
