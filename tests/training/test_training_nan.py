"""A loss that is not a number: from real weights that are infinite, and from real steps that are
too large."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from lazy_imports import LazyImport, lazy_names
from training_runs import Ran, conducted, configured

from qtui_core.live.snapshot import PhaseEnded
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.models.demo import DEMO_FOLDER

torch = LazyImport("torch")
load_file, save_file = lazy_names("safetensors.torch", "load_file", "save_file")
not_a_number = LazyImport("qtui_core.training.run.faults", "not_a_number")


BROKEN = "model.layers.1.mlp.up_proj.weight"


def broken_demo(folder: Path, value: float) -> str:
    """The demo model with one value of one weight changed."""
    for path in DEMO_FOLDER.iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(DEMO_FOLDER / "model.safetensors")
    weights[BROKEN][3, 5] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.parametrize(
    ("plan", "step", "words"),
    [
        ({"dtype": "fp16"}, 4, "--dtype bf16"),
        ({"dtype": "fp32", "autocast_dtype": "fp16"}, 4, "--autocast-dtype bf16"),
        ({"dtype": "fp32", "autocast_dtype": "fp16", "autocast": False}, 1, "take another"),
        ({}, 4, "adamw at 0.001"),
    ],
)
def test_what_may_be_the_cause_is_said(plan, step, words):
    resolved = resolve(RunPlan(**plan), "bf16")
    fault = not_a_number(1.0, step, math.nan, resolved, 1e-3)
    assert words in fault.text
    assert f"step {step} is NaN" in fault.text
    assert (fault.kind, fault.fatal) == ("not a number", False)
    assert "infinite" in not_a_number(1.0, step, -math.inf, resolved, 1e-3).text


def _told_once(ran: Ran, step: int, count: int) -> None:
    """The run continues to its end, and counts as failed."""
    assert ran.code == 1
    assert len(ran.losses) == count
    assert (ran.fault.kind, ran.fault.step, ran.fault.fatal) == ("not a number", step, False)
    assert "counts as failed" in ran.fault.text
    assert any(e.step == count and e.phase == "between steps" for e in ran.of(PhaseEnded))


@pytest.mark.slow
def test_infinite_weights_are_told(tmp_path):
    model = broken_demo(tmp_path, math.inf)
    ran = conducted(model, {"method": "qlora", "batch": 1, "sequence": 32}, 3)
    _told_once(ran, 1, 3)
    assert all(loss is not None and math.isnan(loss) for loss in ran.losses)
    assert "take another copy" in ran.fault.text


@pytest.mark.slow
def test_steps_that_are_too_long_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("qtui_core.training.run.live.rate_of", lambda plan: 1e30)
    plan = {"method": "full", "dtype": "fp32", "batch": 1, "sequence": 16, "optimizer": "sgd"}
    ran = conducted(configured(tmp_path, torch_dtype="float32"), plan, 5)
    assert ran.losses[0] is not None
    assert math.isfinite(ran.losses[0])
    first = next(n for n, loss in enumerate(ran.losses, 1) if not math.isfinite(loss or 0.0))
    assert first > 1
    _told_once(ran, first, 5)
    assert "1e+30" in ran.fault.text


@pytest.mark.slow
def test_numbers_too_large_for_float16_are_told_under_a_scaler(tmp_path):
    """A step without finite gradients is skipped, which is not reported as a fault as well."""
    model = broken_demo(tmp_path, 1e38)
    plan = {"method": "lora", "dtype": "fp32", "autocast": True, "autocast_dtype": "fp16"}
    ran = conducted(model, {**plan, "batch": 1, "sequence": 32}, 3)
    _told_once(ran, 1, 3)
    assert "--autocast-dtype bf16" in ran.fault.text
