"""A child that has answered other apps answers as a new one, and one that may still be at something
is not handed on (spare_children.py)."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from quantize_model import PROJ, write_model
from safetensors.numpy import load_file, save_file
from screens import Running, idle, screen_text, until
from spare_children import SpareChildren

from qtui.engine.client import EngineClient
from qtui.engine.estimator.client import EstimatorClient
from qtui.screen.panel.asking import AskingPhase
from qtui_core.memory.plan.run_plan import RunPlan

SCHEMES = ["int4:group64", "nf4:block64:dq"]
WEIGHT = {"tensor": PROJ, "scheme": SCHEMES[0]}
PICTURE = {"tensor": PROJ, "schemes": SCHEMES, "rows": 12, "columns": 20}
#: Questions about a model, in the order of an app that looks at everything.
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("open_model", {}),
    ("measure", WEIGHT),
    ("measure", {**WEIGHT, "inject": {"column": 3, "value": 9.0, "row": 2}}),
    ("statistics", {"tensor": PROJ}),
    ("histogram", {"tensor": PROJ, "bins": 16}),
    ("explain", {"tensor": PROJ, "schemes": SCHEMES}),
    ("element", {**WEIGHT, "row": 4, "column": 17}),
    ("map", PICTURE),
    ("map", {**PICTURE, "kind": "value", "window": (0, 48, 0, 80)}),
    ("outliers", {"tensor": PROJ}),
    ("outliers", {"tensor": PROJ, "detection": "threshold", "limit": 0.5}),
    ("attribution", {**WEIGHT, "tries": 2}),
    ("granularities", WEIGHT),
    ("decomposition", {**WEIGHT, "scheme": "int8:row"}),
    ("codebooks", {"tensor": PROJ, "schemes": SCHEMES}),
    ("rank", {"scheme": SCHEMES[1]}),
    ("measure", {"tensor": "odd.nothing", "scheme": SCHEMES[0]}),
]


@pytest_asyncio.fixture(loop_scope="session")
async def none_waiting(spare_children: SpareChildren) -> AsyncIterator[SpareChildren]:
    """The spare children, of which none waits yet."""
    await spare_children.end()
    yield spare_children


async def told(client: EngineClient, model: str) -> list[object]:
    """What an engine answers to all questions about a model."""
    answers: list[object] = []
    for method, asked in QUESTIONS:
        try:
            reply = await client.request(method, {"model": model, **asked})
        except Exception as error:
            answers.append(repr(error))
        else:
            arrays = {name: bytes(array.data) for name, array in reply.arrays.items()}
            answers.append((method, reply.data, arrays))
    return answers


async def estimated(client: EngineClient, model: str) -> list[object]:
    """What an estimator answers to all questions about a model."""
    plan = dataclasses.asdict(RunPlan(batch=2, sequence=256))
    asked = {"model": model, "case": "", "plan": plan, "device": {"name": "T4"}}
    methods = ("open", "first", "full", "around")
    return [(await client.request(method, asked)).data for method in methods]


def change(model: str) -> None:
    """Writes other values into the files of a model."""
    path = Path(model) / "model.safetensors"
    changed = {name: (x * 2 + 1).astype(x.dtype) for name, x in load_file(path).items()}
    save_file({name: np.ascontiguousarray(x) for name, x in changed.items()}, path)


@pytest.mark.parametrize(
    ("made", "ask"),
    [(EngineClient, told), (EstimatorClient, estimated)],
    ids=["engine", "estimator"],
)
async def test_a_spared_child_answers_as_a_new_one(
    none_waiting: SpareChildren,
    tmp_path: Path,
    made: Callable[[], EngineClient],
    ask: Callable[[EngineClient, str], Any],
) -> None:
    models = ["demo", "demo"]
    if ask is told:
        models = [write_model(tmp_path / name) for name in ("one", "other")]
    used = made()
    before = [await ask(used, model) for model in models]
    pid = used.pid
    await used.close()
    if ask is told:
        for model in models:
            change(model)
    again = made()
    spared = [await ask(again, model) for model in models]
    assert again.pid == pid
    new = made()  # while the other is in use, so that it gets none
    assert spared == [await ask(new, model) for model in models]
    assert new.pid != pid
    assert (spared == before) == (ask is not told)
    await again.close()
    await new.close()


async def test_an_app_with_a_spared_child_shows_what_one_with_a_new_child_shows(
    none_waiting: SpareChildren, running: Running, model: str
) -> None:
    async def seen(keys: str) -> tuple[int | None, list[str]]:
        screens = []
        async with running(model=model, start_panel="quantize", color="16") as pilot:
            panel: Any = pilot.app.panel
            for key in keys:
                await until(pilot, lambda: panel.phase in (AskingPhase.READY, AskingPhase.FAILED))
                await idle(pilot)
                screens.append(screen_text(pilot.app))
                await pilot.press(key)
            await idle(pilot)
            return panel.qtui.engine.pid, screens

    pid, first = await seen("vmfx")
    assert await seen("xVVfo") != (pid, first)
    assert await seen("vmfx") == (pid, first)


async def test_what_may_still_be_at_something_is_not_handed_on(
    none_waiting: SpareChildren, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked() -> EngineClient:
        client = EngineClient()
        await client.request("open_model", {"model": model})
        return client

    pids = []
    for trouble in ("works", "stopped", "killed", "elsewhere", "surroundings"):
        client = await asked()
        pids.append(client.pid)
        assert client.pid is not None
        if trouble in ("works", "stopped"):
            os.kill(client.pid, signal.SIGSTOP)  # so that it does not answer
            rank = asyncio.create_task(client.request("rank", {"model": model, "scheme": "nf4"}))
            await asyncio.sleep(0)
            if trouble == "stopped":
                rank.cancel()
            os.kill(client.pid, signal.SIGCONT)
        elif trouble == "killed":
            client.kill()
        elif trouble == "elsewhere":
            monkeypatch.chdir(tmp_path)
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", "3")
        await client.close()
        if trouble in ("works", "stopped"):
            await asyncio.gather(rank, return_exceptions=True)
    last = await asked()
    assert len({*pids, last.pid}) == 6
    await last.close()
