"""The two processes of the estimator behind one client."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from processes import alive
from screens import Running, screen_text, settled, until

from qtui.engine.client import EngineLost, EngineState
from qtui.engine.estimator.client import EstimatorClient
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.shown import GpuChoice
from qtui_core.memory.plan.run_plan import RunPlan

CONFIGS = Path(__file__).parents[1] / "memory" / "configs"


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[EstimatorClient]:
    made = EstimatorClient()
    yield made
    await made.close()


def params(model: Path | str, **more: Any) -> dict[str, Any]:
    plan = dataclasses.asdict(RunPlan(batch=1, sequence=512))
    return {"model": str(model), "case": "", "plan": plan, "device": None, **more}


async def test_a_curve_does_not_wait_for_a_map(client: EstimatorClient) -> None:
    asked = params(CONFIGS / "llama-3.2-1b.json")
    await client.request("open", asked)
    await client.request("first", asked)
    sizes = {"batches": [1, 2, 4, 8, 16, 32], "sequences": [256, 512, 1024, 2048]}
    behind = client._behind.pid
    assert behind is not None
    os.kill(behind, signal.SIGSTOP)  # so that the map is not done too soon
    try:
        mapped = asyncio.create_task(client.request("map", {**asked, **sizes}))
        await asyncio.sleep(0)
        for _ in range(3):
            await client.request("first", asked)
        assert not mapped.done()
        assert client.busy
    finally:
        os.kill(behind, signal.SIGCONT)
    await mapped
    assert not client.busy


async def test_both_read_a_model_anew_when_it_is_opened(
    client: EstimatorClient, tmp_path: Path
) -> None:
    text = (CONFIGS / "llama-3.2-1b.json").read_text()
    path = tmp_path / "config.json"
    for layers in (2, 3):
        path.write_text(json.dumps({**json.loads(text), "num_hidden_layers": layers}))
        asked = params(path)
        assert (await client.request("open", asked)).data["layers"] == layers
        first = (await client.request("first", asked)).data
        full = (await client.request("full", asked)).data
        assert first["peak_live_bytes"] == full["peak_live_bytes"]


@pytest.mark.parametrize("which", ["front", "behind"])
async def test_both_are_lost_and_started_together(client: EstimatorClient, which: str) -> None:
    asked = params("demo")
    await client.request("open", asked)
    pids = (client.pid, client._behind.pid)
    pid = pids[which == "behind"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # what is asked now is not answered before it dies
    lost = asyncio.create_task(
        client.request("cases") if which == "behind" else client.request("first", asked)
    )
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineLost, match="was killed"):
        await lost
    assert client.state is EngineState.LOST
    assert "was killed" in client.detail
    with pytest.raises(EngineLost):
        await client.request("full", asked)
    await client.restart()
    await client.request("first", asked)
    await client.request("full", asked)
    assert client.pid not in pids
    assert client._behind.pid not in pids


@pytest.mark.own_children
async def test_closing_ends_both(client: EstimatorClient) -> None:
    await client.request("open", params("demo"))
    pids = (client.pid, client._behind.pid)
    await client.close()
    assert client.state is EngineState.IDLE
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
async def test_an_estimator_that_does_not_answer_is_told_ended_and_restarted(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each panel that uses it, whichever of its processes hangs."""
    for module in ("client", "waiting"):  # longer than between two signs of life
        monkeypatch.setattr(f"qtui.engine.{module}.SILENT_AFTER_SECONDS", 2.0)
        monkeypatch.setattr(f"qtui.engine.{module}.LOOK_SECONDS", 0.1)
    async with running(start_panel="memory") as pilot:
        app = cast(Any, pilot.app)

        def shown() -> bool:
            panel = app.panel
            if panel.PANEL_ID == "hardware":
                return not panel.silence and not panel.trouble and bool(panel.shown.operations)
            return not panel.silence and panel.phase is AskingPhase.READY

        for key, behind, way_out in (
            ("4", False, "escape"), ("4", True, "SIGCONT"), ("5", False, "r"),
            ("5", True, "escape"), ("7", True, "r"),
        ):  # fmt: skip
            case = (key, behind, way_out)
            await pilot.press(key)
            await until(pilot, shown)
            process = app.estimator._behind if behind else app.estimator
            await until(pilot, lambda process=process: process.state is EngineState.RUNNING)
            pid = process.pid
            assert pid is not None, case
            os.kill(pid, signal.SIGSTOP)
            await pilot.press(*("d", "down", "enter") if key == "7" else ("right",))
            panel = app.panel
            await until(pilot, lambda panel=panel: panel.silence != "")
            await settled(pilot)
            assert panel.sentence.startswith("The estimator has not answered for "), case
            assert "no answer: this is old" in screen_text(app), case
            if way_out == "SIGCONT":
                os.kill(pid, signal.SIGCONT)
            else:
                await pilot.press(way_out)
            if way_out == "escape":
                await until(pilot, lambda: app.estimator.state is EngineState.LOST)
                await settled(pilot)
                assert "r starts it again" in screen_text(app), case
                await pilot.press("r")
            await until(pilot, shown)
            await settled(pilot)
            assert alive(pid) == (way_out == "SIGCONT"), case
            assert "answer" not in panel.sentence, case
            assert key != "5" or not panel.run_shown.there, case


async def test_the_largest_batch_that_fits_is_taken(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = cast(Any, pilot.app).panel

        async def ready() -> None:
            done = lambda: panel.phase is AskingPhase.READY and panel.shown.around  # noqa: E731
            await until(pilot, done)
            await settled(pilot)

        await ready()
        assert not panel.offers("largest", ())  # no GPU is named
        panel._set("sequence", 256)
        panel.choose_gpu(GpuChoice.of_memory(1 << 30))
        await ready()
        await pilot.press("B")
        await until(pilot, lambda: panel.shown.plan.batch > 1 or bool(panel.refusal))
        await ready()
        fit = panel.shown.answer.fit
        assert fit.verdict == "fits"
        batch = panel.shown.plan.batch
        await pilot.press("B")
        await until(pilot, lambda: panel.refusal != "")
        assert f"No more than this batch of {batch} of 256 tokens fits." in panel.refusal
        panel._set("batch", batch + 1)
        await ready()
        assert panel.shown.answer.fit.verdict != "fits"


async def test_another_model_is_estimated_in_both_panels(running: Running) -> None:
    """Both ask the one estimator the same at the same moment."""
    async with running(start_panel="memory") as pilot:
        app, found = cast(Any, pilot.app), []
        for key in ("4", "5"):
            await pilot.press(key)
            await until(pilot, lambda: app.panel.phase is AskingPhase.READY)
            found.append(app.panel)
        app.open_model(str(CONFIGS / "llama-3.2-1b.json"))
        await until(pilot, lambda: all(panel.shown.model != "demo" for panel in found))
        await until(pilot, lambda: all(panel.phase is AskingPhase.READY for panel in found))
        assert {panel.shown.facts.layers for panel in found} == {16}


async def test_a_look_changes_no_plan_and_one_for_another_model_is_named(
    running: Running,
) -> None:
    """GPT-2 has 1,024 positions, and a run of the demo on a CPU takes 128 tokens."""
    async with running(start_panel="train") as pilot:
        app = cast(Any, pilot.app)

        async def of(model: str, key: str) -> Any:
            await pilot.press(key)
            await until(pilot, lambda: app.panel.shown.model == model and app.panel.shown.current)
            return app.panel

        async def opened(model: str) -> str:
            app.open_model(model)
            await until(pilot, lambda: app.model == model)
            return model

        assert (await of("demo", "5")).shown.answer.plan.sequence == 128
        gpt2 = await opened(str(CONFIGS / "gpt2-medium.json"))
        assert (await of(gpt2, "4")).shown.answer.plan.sequence == 1024
        llama = await opened(str(CONFIGS / "llama-3.2-1b.json"))
        panel = await of(llama, "4")
        assert panel.shown.answer.plan.sequence == 2048
        assert app.chosen is None
        assert panel._set("method", "full")
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        assert "made for" not in panel.sentence
        await opened("demo")
        panel = await of("demo", "4")
        of_llama = f"The plan was made for {llama}: `--method full`. "
        await until(pilot, lambda: panel.sentence.startswith(of_llama))
        assert panel._set("batch", 2)
        await until(pilot, lambda: "made for" not in panel.sentence)
