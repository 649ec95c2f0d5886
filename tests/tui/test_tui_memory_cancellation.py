"""A computation that never checks its task ends when the task is cancelled."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qtui.engine.estimator.client import EstimatorClient
from qtui.engine.task import Cancelled, Task, run_cancellable
from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan

CONFIGS = Path(__file__).parents[1] / "memory" / "configs"


def new_task() -> Task:
    return Task(1, "full", {}, lambda fraction, data: None)


def test_what_is_computed_or_raised_is_passed_on() -> None:
    assert run_cancellable(new_task(), lambda: 41 + 1) == 42

    def refuse() -> int:
        raise UsageError("No.")

    with pytest.raises(UsageError, match="No"):
        run_cancellable(new_task(), refuse)


def test_what_is_given_up_ends() -> None:
    task = new_task()
    ended = threading.Event()

    def forever() -> None:
        try:
            while True:
                sum(range(100))
        finally:
            ended.set()

    threading.Timer(0.1, task.cancel).start()
    with pytest.raises(Cancelled):
        run_cancellable(task, forever)
    assert ended.wait(60)
    assert not any(thread.name == "full 1" for thread in threading.enumerate())


async def test_the_next_plan_does_not_wait_for_one_that_takes_long(tmp_path: Path) -> None:
    """Layers in no pattern are all recorded, one by one."""
    kinds = Random(1).choices(["full_attention", "sliding_attention"], k=2000)
    config = json.loads((CONFIGS / "gemma-3-1b.json").read_text())
    config |= {"num_hidden_layers": len(kinds), "layer_types": kinds}
    (tmp_path / "config.json").write_text(json.dumps(config))
    client = EstimatorClient()
    try:

        def params(plan: RunPlan, model: str = "demo") -> dict[str, Any]:
            return {"model": model, "case": "", "plan": dataclasses.asdict(plan), "device": None}

        await client.request("open", params(RunPlan()))
        asked = client.request("full", params(RunPlan(), str(tmp_path)))
        slow = asyncio.create_task(asked)
        await asyncio.sleep(0.5)
        assert not slow.done()
        slow.cancel()
        await asyncio.wait_for(client.request("full", params(RunPlan(batch=2))), 120)
    finally:
        await client.close()
