"""Plans from recordings, from other versions, and invalid ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from every import over

from qtui_core.live.recorded_plan import plan_of
from qtui_core.memory.plan.run_plan import RunPlan, resolve


def test_a_recorded_plan_is_the_plan_that_ran() -> None:
    for plan in (RunPlan(), resolve(RunPlan(lora_targets=("q_proj", "v_proj")), "bf16")):
        recorded = asdict(plan)
        assert plan_of(recorded) == plan
        assert plan_of({**recorded, "lora_targets": list(plan.lora_targets)}) == plan


def test_what_another_version_lacks_is_usual_and_what_it_adds_is_left_out() -> None:
    assert plan_of({"batch": 3, "muon_momentum": 0.9}) == RunPlan(batch=3)
    assert plan_of({"optimizer": "muon"}).optimizer == "muon"  # a name this version does not know


@over(
    ("name", "value"),
    [
        ("lora_targets", 5), ("lora_targets", [1]), ("lora_targets", "q_proj"), ("batch", "4"),
        ("batch", True), ("batch", 1.5), ("dtype", True), ("autocast", 1), ("torch", 2.1),
        ("lora_dropout", "0"), ("method", None), ("kbit_prep", 0), ("loss", {}),
    ],
)  # fmt: skip
def test_values_of_other_types_are_as_usual(name: str, value: Any) -> None:
    assert plan_of({name: value}) == RunPlan()
