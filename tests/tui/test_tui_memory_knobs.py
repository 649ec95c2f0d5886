"""The fields of the form: how keys and typed text change a plan."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from qtui.screen.plan.fields import changed, difference, form_options, shown_options, stepped
from qtui_core.errors import UsageError
from qtui_core.memory.plan.options import Method, share, whole_number
from qtui_core.memory.plan.run_plan import RunPlan, resolve

METHODS = get_args(Method)
OPTIONS = tuple(form_options(RunPlan()))
BY_FIELD = {option.name: option for option in OPTIONS}


def test_every_field_of_a_plan_but_the_version_of_torch_has_a_knob() -> None:
    assert {field.name for field in dataclasses.fields(RunPlan)} - set(BY_FIELD) == {"torch"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_value_makes_a_plan(option) -> None:
    """Each value is possible in some plan that shows the option, with what it needs there."""
    for value in option.steps:
        possible = []
        for method in METHODS:
            for more in ({}, {"gpus": 64}, {"gpus": 64, "zero": 3}):
                try:
                    plan = RunPlan(method=method, **more)
                    resolved = resolve(changed(plan, option.name, value), "bf16")
                except UsageError:
                    continue
                if option in shown_options(resolved):
                    possible.append(resolved)
        assert possible, (option.name, value)


def test_numbers_stop_at_their_ends_and_names_go_round() -> None:
    batch, method = BY_FIELD["batch"], BY_FIELD["method"]
    assert stepped(batch, 1, -1) == 1
    assert stepped(batch, 512, 1) == 512
    assert stepped(batch, 5, 1) == 6
    assert stepped(batch, 5, -1) == 4
    assert stepped(method, METHODS[-1], 1) == METHODS[0]
    assert stepped(method, METHODS[0], -1) == METHODS[-1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("before", METHODS)
def test_methods_change_into_each_other(before: str, method: str) -> None:
    """Whatever was set for one method, the other is possible: its own defaults replace the
    values."""
    plan = RunPlan(method=before)  # type: ignore[arg-type]
    for field in ("quant", "kbit_prep"):
        if before == "qlora":
            plan = dataclasses.replace(plan, **{field: BY_FIELD[field].steps[-1]})
    if before == "inference":
        plan = dataclasses.replace(plan, generate=512, quant="nf4")
    assert resolve(changed(plan, "method", method), "bf16").method == method


def test_one_gpu_shards_nothing() -> None:
    plan = RunPlan(gpus=8, zero=3, tensor_parallel=2)
    assert resolve(changed(plan, "gpus", 1), "bf16").zero == 0


def test_numbers_are_read_as_people_write_them() -> None:
    assert whole_number("4,096") == whole_number("4k") == whole_number(" 4096 ") == 4096
    assert share("0.05") == 0.05


@pytest.mark.parametrize("text", ["", "four", "-1", "1.5", "4kk", "٤", "9" * 30])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"no whole number|of 30 digits is more"):
        whole_number(text)


def test_a_difference_names_what_was_changed() -> None:
    before = resolve(RunPlan(batch=2), "bf16")
    after = resolve(RunPlan(batch=4, checkpointing=False), "bf16")
    assert difference(before, after) == "batch 2 → 4, checkpointing on → off"
    assert difference(before, before) == ""
