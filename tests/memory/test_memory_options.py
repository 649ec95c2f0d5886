"""An option of a plan is one row: a made-up option appears everywhere that options do."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

import click
import pytest
from click.testing import CliRunner
from test_memory_estimate import SHAPE

from qtui.cli import plan_options as command_line
from qtui.screen.plan.fields import changed, difference, form_fields, stepped
from qtui.screen.plan.shown import Shown
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.live import compare
from qtui_core.memory import estimate
from qtui_core.memory.advice.fit import candidates
from qtui_core.memory.plan.options import Cheaper, RunPlan, choice, options_of
from qtui_core.memory.plan.run_plan import resolve

Salt = Literal["none", "fine", "coarse"]


@dataclass(frozen=True)
class Salted(RunPlan):
    """Plans with one more option."""

    salt: Salt = choice(
        "none", "--salt", ("none", "fine", "coarse"), "How the gradients are salted.",
        noun="salt", group="step", counts=lambda plan: plan.trains,
        idle="an inference has no gradients",
        refused=lambda plan: "Coarse salt clogs SGD." * (
            plan.salt == "coarse" and plan.optimizer == "sgd"
        ),
        cheaper=(Cheaper("none", "blander gradients"),),
    )  # fmt: skip


@pytest.fixture
def salted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "RunPlan", Salted)
    monkeypatch.setattr(compare, "RunPlan", Salted)


def run(*arguments: str) -> tuple[str, list[RunPlan]]:
    """What a command writes for options of a plan, and the plan that it receives."""
    plans: list[RunPlan] = []

    @click.command()
    @command_line.plan_options
    def command(plan: RunPlan) -> None:
        plans.append(plan)

    return CliRunner().invoke(command, arguments).output, plans


@pytest.mark.usefixtures("salted")
def test_a_made_up_option_is_typed() -> None:
    text, _ = run("--help")
    assert "--salt [none|fine|coarse]" in text
    assert "How the gradients are salted.  [default: none]" in " ".join(text.split()).replace(
        "salted. [", "salted.  ["
    )
    assert "is not one of 'none', 'fine', 'coarse'" in run("--salt", "sea")[0]
    (plan,) = run("--salt", "fine", "--batch", "2")[1]
    assert plan == Salted(batch=2, salt="fine")


@pytest.mark.usefixtures("salted")
def test_a_made_up_option_is_written() -> None:
    plan = resolve(Salted(salt="fine"), "bf16")
    (step,) = [options for group, options in plan.grouped() if group == "step"]
    assert step.endswith("--salt fine")
    assert Salted().change_to(Salted(salt="coarse")) == "--salt coarse"
    recorded = json.loads(json.dumps(asdict(plan)))
    assert recorded["salt"] == "fine"
    assert compare.plan_of(recorded) == plan


def test_a_made_up_option_is_checked() -> None:
    with pytest.raises(UsageError, match="'sea' is no salt that is known; use none, fine, coarse"):
        resolve(Salted(salt="sea"), "bf16")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Coarse salt clogs SGD"):
        estimate(SHAPE, Salted(salt="coarse", optimizer="sgd"))


def test_a_made_up_option_is_on_the_form() -> None:
    lines = {line.key: line for line in form_fields(Shown("m", plan=Salted(salt="fine")))}
    salt = lines["salt"]
    assert (salt.label, salt.group, salt.value, salt.chosen) == ("salt", "step", "fine", True)
    assert "salt" not in {line.key for line in form_fields(Shown("m", plan=Salted("inference")))}
    row = options_of(Salted)[-1]
    assert stepped(row, "fine", 1) == "coarse"
    after = changed(Salted(), "salt", "coarse")
    assert difference(Salted(), after) == "salt none → coarse"


def test_a_made_up_option_is_weighed_and_told_where_it_is_idle() -> None:
    plan = resolve(Salted(method="full", salt="coarse"), "bf16")
    assert ({"salt": "none"}, "blander gradients") in [*candidates(SHAPE, plan)]
    asked = Salted(method="inference", salt="coarse")
    (idle,) = asked.without_effect(resolve(asked, "bf16"))
    assert (idle.flag, idle.idle) == ("--salt", "an inference has no gradients")
