"""Tables of estimate and measurement, and the data of a summary, from hand-made runs."""

import json
from dataclasses import asdict, replace

import pytest
from live_runs import BEFORE, MIB, ON_CPU, ON_GPU, PEAKS, PREDICTED, STEP, run
from test_live_state import fold

from qtui_core.live.compare import by_component, by_phase, plan_of, summary, too_early
from qtui_core.live.snapshot import Fault, PhaseEnded, StepTaken
from qtui_core.live.state import measured
from qtui_core.memory.plan.run_plan import RunPlan, resolve


def test_phases_of_both_sides_in_order():
    rows = by_phase(fold(run()))
    assert [row.name for row in rows] == [*BEFORE, *STEP]
    assert rows[0].estimated is None
    assert rows[0].gap is None
    for row in rows[1:]:
        assert (row.estimated, row.measured) == (PEAKS[row.name] * MIB, (PEAKS[row.name] + 1) * MIB)
        assert row.gap == pytest.approx(1 / (PEAKS[row.name] + 1))


def test_quantizing_counts_as_part_of_the_load():
    told = list(run())
    place = next(i for i, t in enumerate(told) if isinstance(t, PhaseEnded) and t.phase == "load")
    told.insert(place + 1, PhaseEnded(0.9, 0, "quantize", 77 * MIB, 1))
    rows = {row.name: row for row in by_phase(fold(told))}
    assert rows["load"].measured == 77 * MIB
    assert "quantize" not in rows
    unpredicted = [replace(ON_GPU, predicted=None), *told[1:]]
    rows = {row.name: row for row in by_phase(fold(unpredicted))}
    assert (rows["quantize"].measured, rows["load"].estimated) == (77 * MIB, None)


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("peak", [True, False])
def test_components_of_a_phase_sum_to_its_levels(gpu, peak):
    state = fold(run(gpu=gpu))
    for name in STEP:
        rows = by_component(state, name, peak=peak)
        mark = state.measured(name).last
        mine = next(phase for phase in PREDICTED.phases if phase.name == name)
        assert sum(row.measured for row in rows) == (
            mark.peak_allocated_bytes if peak else mark.allocated_bytes
        )
        assert sum(row.estimated for row in rows) == (
            mine.allocated_bytes if peak else sum(mine.held.values())
        )
        weights = next(row for row in rows if row.name == "weights")
        assert (weights.estimated, weights.measured, weights.gap) == (40 * MIB, 40 * MIB, 0)
        # What the estimate's blocks are larger than their tensors is told of no component.
        assert gpu or not any("temporaries" in row.name for row in rows)
    assert by_component(state, "import") == ()
    assert by_component(state, "no phase") == ()


def test_a_run_is_held_against_its_estimate_from_two_whole_steps_on():
    """Two steps of a training; an inference creates nothing in its first step that stays."""
    infers = replace(ON_GPU, plan=dict(ON_GPU.plan) | {"method": "inference"})
    unknown = replace(ON_GPU, predicted=None, why_not="nobody asked")
    for head, needed in ((ON_GPU, 2), (infers, 1), (unknown, 0)):
        told = [head, *list(run(3))[1:]]
        whole = 0
        for upto, each in enumerate(told, 1):
            whole += isinstance(each, StepTaken)
            assert too_early(fold(told[:upto])) is (whole < needed), (head.plan["method"], upto)


def test_figures_of_a_run():
    state = fold([*run(3), StepTaken(50.0, 4, 4.6, 4.0, 128)])
    found = measured(state)
    between = state.measured("between steps").last
    assert found.resident_bytes == between.allocated_bytes
    held = {**between.held, "inputs": 512, "gradients": 1024}
    more = PhaseEnded(60.0, 4, "between steps", 1, between.allocated_bytes + 1536, held=held)
    assert measured(fold([more], state)).resident_bytes == between.allocated_bytes
    assert found.step_seconds == 2.0  # of 2, 2 and 4: the first step does not count
    assert found.tokens_per_second == 64
    assert measured(fold(run(1))).step_seconds == 2.0
    assert measured(fold([ON_GPU])).step_seconds is None


def test_the_summary_has_the_keys_that_scripts_rely_on():
    told = list(run())
    first = next(i for i, each in enumerate(told) if isinstance(each, StepTaken))
    assert summary(fold(told[:first]))["levels"] == []  # before a step is over
    assert summary(fold(told[: first + 1]))["levels"] != []
    data = summary(fold(told))
    assert json.loads(json.dumps(data)) == data
    assert set(data["measured"]) >= {
        "resident_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "process_bytes",
        "device_used_bytes", "step_seconds", "loss",
    }  # fmt: skip
    assert data["measured"]["loss"] == pytest.approx([4.9, 4.8, 4.7])
    assert data["plan"] == ON_GPU.plan
    for name in ("name", "estimated_bytes", "measured_bytes"):
        assert all(name in phase for phase in data["phases"])
    levels = {level["level"]: level for level in data["levels"]}
    for level, entry in levels.items():
        parts = [part["bytes"] for part in data["gap"] if part["level"] == level]
        assert sum(parts) == entry["measured_bytes"] - entry["estimated_bytes"]


def test_the_summary_of_a_run_on_a_cpu_says_what_is_not_there():
    data = summary(fold(run(gpu=False)))
    assert data["measured"]["counted"] == "tensors"
    assert data["measured"]["peak_reserved_bytes"] is None
    assert {part["level"] for part in data["gap"]} == {"allocated"}
    assert all("On a CPU" in level["not_measured"] for level in data["levels"][1:])


def test_a_run_that_failed_early_has_a_summary():
    fault = Fault(0.1, 0, "load", "model", "The file is gone.", advice=(("--batch 1", 5),))
    data = summary(fold([replace(ON_CPU, predicted=None, why_not="no shape"), fault]))
    assert data["estimate"] is None
    assert data["estimate_missing"] == "no shape"
    assert data["gap"] == []
    assert data["faults"][0]["text"] == "The file is gone."
    with pytest.raises(ValueError, match="reported nothing"):
        summary(fold([]))


def test_comparing_adapters_is_no_part_of_the_levels():
    huge = {"reserved_bytes": 1 << 40, "process_bytes": 1 << 40, "device_used_bytes": 1 << 40}
    told = PhaseEnded(
        99.0, 3, "compare", 1 << 40, 1, peak_reserved_bytes=1 << 40, held={"weights": 5}, **huge
    )
    before, after_it = fold(run()), fold([*run(), told])
    assert measured(after_it) == measured(before)
    assert by_phase(after_it)[:-1] == by_phase(before)
    assert (by_phase(after_it)[-1].name, by_phase(after_it)[-1].gap) == ("compare", None)


def test_a_recorded_plan_is_the_plan_that_ran():
    for plan in (RunPlan(), resolve(RunPlan(lora_targets=("q_proj", "v_proj")), "bf16")):
        assert plan_of(json.loads(json.dumps(asdict(plan)))) == plan
    # What another version lacks is usual, what it adds is left out, and its names are kept.
    assert plan_of({"batch": 3, "muon_momentum": 0.9}) == RunPlan(batch=3)
    assert plan_of({"optimizer": "muon"}).optimizer == "muon"
    # So it is with values of other types.
    for name, value in (
        ("lora_targets", 5), ("lora_targets", [1]), ("lora_targets", "q_proj"), ("batch", "4"),
        ("batch", True), ("batch", 1.5), ("dtype", True), ("autocast", 1), ("torch", 2.1),
        ("lora_dropout", "0"), ("method", None), ("kbit_prep", 0), ("loss", {}),
    ):  # fmt: skip
        assert plan_of({name: value}) == RunPlan(), name
