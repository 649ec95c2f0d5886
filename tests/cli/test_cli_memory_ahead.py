"""Peaks computed in a forked process are the same as those computed here, and a missing result is
computed here."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from qtui.cli import memory_ahead
from qtui.cli.memory_ahead import weighed_beside
from qtui.cli.memory_report import report_on
from qtui_core.errors import UsageError
from qtui_core.memory.advice.capacity import fits
from qtui_core.memory.advice.changes import advise, weighed_plans
from qtui_core.memory.devices.finding import find_device
from qtui_core.memory.estimate import estimate, estimate_peaks
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run, resolve
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.models import open_model

CONFIG = Path(__file__).parents[1] / "memory" / "configs" / "gpt2-medium.json"
SHAPE = shape_from_config(json.loads(CONFIG.read_text()))
PLAN = resolve(RunPlan(method="lora", batch=2, sequence=256), SHAPE.dtype)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


class Weighing:
    """Computes peaks, and records the plans that this process was asked for."""

    def __init__(self, device=None):
        self.asked = []
        self.peaks = partial(estimate_peaks, SHAPE, device=device)

    def __call__(self, plan):
        self.asked.append(plan)
        return self.peaks(plan)


def children():
    """Children of this process that have not been waited for."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


@pytest.mark.parametrize("gpu", [None, "T4", "A100"])
def test_a_report_asks_nothing_more_of_this_process(gpu):
    device = gpu and find_device(gpu)
    weighing = Weighing(device)
    beside = weighed_beside(weighing, weighed_plans(SHAPE, plan_as_run(SHAPE, PLAN, device)))
    found = estimate(SHAPE, PLAN, device)
    advice = advise(found, beside)
    verdicts = fits(found, [find_device("T4"), find_device("H100")], beside)
    assert weighing.asked == []
    assert children() is None
    assert advice == advise(found, weighing)
    assert verdicts == fits(found, [find_device("T4"), find_device("H100")], weighing)
    assert len(advice) > 3


def test_what_nobody_thought_of_is_worked_out_here():
    weighing = Weighing()
    beside = weighed_beside(weighing, weighed_plans(SHAPE, PLAN))
    other = replace(PLAN, batch=3, sequence=128)
    assert beside(other) == estimate_peaks(SHAPE, other)
    assert weighing.asked == [other]


def test_a_fork_that_was_killed_is_missed_by_nobody(monkeypatch):
    monkeypatch.setattr(memory_ahead, "_answer", lambda *_: os._exit(9))
    weighing = Weighing()
    beside = weighed_beside(weighing, weighed_plans(SHAPE, PLAN))
    found = estimate(SHAPE, PLAN)
    assert advise(found, beside) == advise(found, Weighing())
    assert weighing.asked
    assert children() is None


def test_where_no_process_can_be_had_all_is_worked_out_here(monkeypatch):
    def refuse():
        raise OSError("as many as the user may have")

    monkeypatch.setattr(os, "fork", refuse)
    weighing = Weighing()
    open_before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert weighed_beside(weighing, weighed_plans(SHAPE, PLAN)) is weighing
    if open_before:
        assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_plan_that_cannot_be_forks_nothing(monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    with open_model(str(CONFIG)) as source, pytest.raises(UsageError, match="The batch"):
        report_on(source, RunPlan(batch=0), alone=True)
