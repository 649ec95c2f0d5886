"""Today's estimate compared with runs that were measured on GPUs, and the arithmetic of the
grid."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from gpu.grid import (
    BOUNDS,
    CASES,
    MODELS,
    Case,
    Row,
    config_of,
    read_row,
    read_rows,
    run,
    small_config,
    table,
)

from qtui_core.memory.devices.device import find_device
from qtui_core.memory.estimate import Estimate, estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import parameter_count


def estimated(row: Row) -> Estimate:
    """Today's estimate of the run in a row."""
    config = json.loads(config_of(Case(**row.case)).read_text())
    plan = RunPlan(**{**row.plan, "lora_targets": tuple(row.plan["lora_targets"])})
    return estimate(shape_from_config(config), plan, find_device(row.device["name"]))


def at_levels(found: Estimate) -> dict[str, int | None]:
    return {
        "resident": found.resident_bytes,
        "allocated": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "process": found.process_bytes,
    }


def faults_of(row: Row) -> dict[str, float]:
    """The levels at which today's estimate differs by more than allowed."""
    errors = replace(row, estimated=at_levels(estimated(row))).errors
    return {level: error for level, error in errors.items() if abs(error) > BOUNDS[level]}


def test_runs_on_gpus_are_as_estimated() -> None:
    """All rows; none has been measured yet (measured/README.md)."""
    assert {Case(**r.case).name: f for r in read_rows() if (f := faults_of(r))} == {}


def told(case: Case, scale: float = 1.0) -> dict[str, object]:
    """The JSON of a run that took `scale` times the estimate."""
    plan = RunPlan(method="lora", batch=case.batch, sequence=case.sequence, dtype="bf16")
    row = Row(asdict(case), {"name": "NVIDIA A100-SXM4-80GB"}, {}, asdict(plan), {}, {}, [])
    levels = {
        name: round((nbytes or 0) * scale) for name, nbytes in at_levels(estimated(row)).items()
    }
    return {
        "device": row.device,
        "versions": {},
        "plan": row.plan,
        "phases": [],
        "estimate": {"resident_bytes": levels["resident"]},
        "measured": {"resident_bytes": levels["resident"]},
        "levels": [
            {"level": name, "measured_bytes": nbytes, "estimated_bytes": nbytes}
            for name, nbytes in levels.items()
            if name != "resident"
        ],
    }


CASE = Case("SmolLM2-135M", "lora", False, 1, 1024, "sdpa")


def test_a_run_that_took_what_is_estimated_is_no_fault() -> None:
    row = read_row(CASE, told(CASE))
    assert faults_of(row) == {}
    assert row.errors == dict.fromkeys(BOUNDS, 0.0)


def test_a_run_that_took_a_tenth_more_is_a_fault_at_every_level(tmp_path: Path) -> None:
    row = read_row(CASE, told(CASE, 1.1))
    (tmp_path / "gpu.jsonl").write_text(json.dumps(asdict(row)) + "\n")
    (read,) = read_rows(tmp_path)
    assert set(faults_of(read)) == set(BOUNDS)


def test_the_grid_is_the_one_that_was_asked_for() -> None:
    assert len({case.name for case in CASES}) == 3 * 3 * 2 * 2 * 2
    sizes = {name: shape_from_config(json.loads(p.read_text())) for name, p in MODELS.items()}
    billions = sorted(parameter_count(shape) / 1e9 for shape in sizes.values())
    assert 0.1 < billions[0] < 0.2
    assert 8.0 < billions[-1] < 8.1


@pytest.mark.slow
@pytest.mark.parametrize(("method", "bound"), [("qlora", 5.0), ("full", 1.0)])
def test_the_grid_runs_on_a_cpu(method: str, bound: float, tmp_path: Path) -> None:
    """The same command without a GPU, where only tensors are counted. On a CPU, 4-bit products have
    other temporaries than on the GPU of the estimate."""
    case = Case("SmolLM2-135M", method, True, 1, 64, "sdpa")
    config = small_config(MODELS[case.model], tmp_path / "configs")
    row = run(case, tmp_path / "recordings", "cpu", config)
    assert not row.failed
    assert row.measured["allocated"]
    assert set(row.errors) == {"allocated"}
    assert abs(row.errors["allocated"]) <= bound
    assert (tmp_path / "recordings" / f"{case.name}.jsonl").stat().st_size
    assert case.name in "\n".join(table([row]))
