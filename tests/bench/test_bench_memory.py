"""The time of an estimate: of the whole process, compared with accelerate's estimate of the same
model; and of a call for what changes with a knob, compared with the simulation of the largest
model's allocator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
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
#: What `accelerate estimate-memory` does with a model once the hub has named the library; only that
#: step needs the network.
ACCELERATE = """
import sys
from accelerate.commands.estimate import estimate_training_usage
from accelerate import init_empty_weights
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModel
config = AutoConfig.from_pretrained(sys.argv[1])
with init_empty_weights():
    model = AutoModel.from_config(config)
total, largest = calculate_maximum_sizes(model)
print(total, largest, estimate_training_usage(total, "float16"))
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A folder with the config.json of Llama 3.1 8B."""
    (tmp_path / "config.json").write_bytes((CONFIGS / "llama-3.1-8b.json").read_bytes())
    return tmp_path


def process(*arguments: str) -> Callable[[], object]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
        )

    return run


def shape_of(name: str, **changes: object) -> ModelShape:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return shape_from_config({**config, **changes})


def test_the_process_beside_accelerate(config: Path) -> None:
    pytest.importorskip("accelerate")
    best = race(
        {
            "qtui": process("-m", "qtui", "memory", str(config)),
            "python": process("-c", "pass"),
            "accelerate": process("-c", ACCELERATE, str(config)),
        },
        rounds=5,
    )
    ratio = best["accelerate"] / best["qtui"]
    print(
        f"\nqtui memory, whole process: {1e3 * best['qtui']:.0f} ms (an empty Python "
        f"{1e3 * best['python']:.0f} ms); accelerate's estimate of the same model "
        f"{1e3 * best['accelerate']:.0f} ms, {ratio:.1f}x"
    )
    assert ratio >= 10


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_knob_replays_layers(method: str) -> None:
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
