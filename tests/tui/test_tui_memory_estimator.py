"""The estimator's process as the Memory panel uses it, compared with direct calls of the
library."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from qtui.cli.memory_report import report_on
from qtui.engine.client import EngineClient, EngineLost
from qtui.engine.estimator.answers import Answer, Assessment, ModelFacts
from qtui.screen.plan.feed import MemoryFeed
from qtui.screen.plan.shown import GpuChoice, Shown
from qtui_core.codec import printed
from qtui_core.errors import ModelError, UsageError
from qtui_core.memory.advice.fit import fit_on
from qtui_core.memory.devices.device import find_device
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.options import Method
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape, parameter_count
from qtui_core.models import open_model
from qtui_core.telemetry.readings import DeviceReading

CONFIGS = Path(__file__).parents[1] / "memory" / "configs"
PLAN = RunPlan(batch=2, sequence=512)


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[EngineClient]:
    made = EngineClient((sys.executable, "-P", "-m", "qtui.engine.estimator.child"))
    yield made
    await made.close()


def shape_of_demo() -> ModelShape:
    with open_model("demo") as source:
        assert source.config is not None
        return shape_from_config(source.config)


def params(plan: RunPlan = PLAN, **more: Any) -> dict[str, Any]:
    return {"model": "demo", "case": "", "plan": dataclasses.asdict(plan), "device": None, **more}


async def test_answers_are_those_of_the_library(client: EngineClient) -> None:
    reply = await client.request("open", {"model": "demo", "case": ""})
    facts = reply.read(ModelFacts)
    shape = shape_of_demo()
    assert (facts.parameters, facts.layers) == (parameter_count(shape), 6)
    device = find_device("T4")
    asked = params(device={"name": "T4"})
    reply = await client.request("full", asked)
    full, truth = reply.read(Answer), estimate(shape, PLAN, device)
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "process_bytes", "peak_phase"):
        assert getattr(full, name) == getattr(truth, name)
    assert full.plan == truth.plan
    assert sum(term.bytes for term in full.components) == truth.peak_allocated_bytes
    assert full.fit == fit_on(truth, device)
    reply = await client.request("first", asked)
    first = reply.read(Answer)
    assert first.peak_live_bytes == truth.peak_live_bytes == max(first.curve.totals)


async def test_what_surrounds_it(client: EngineClient) -> None:
    live = DeviceReading("0", "NVIDIA H200", 2 << 30, memory_total=140 << 30)
    choice = GpuChoice.live(live)
    assert choice is not None
    asked = params(device={"name": "T4"}, live=[dict(choice.params)])
    around = (await client.request("around", asked)).read(Assessment)
    assert [fit.gpu for fit in around.fits[:2]] == ["T4", "H200 (here)"]
    assert around.fits[1].capacity_bytes == 138 << 30
    assert around.report["peak_phase"] in around.sentence
    saved = [line.saves_bytes for line in around.advice]
    assert saved == sorted(saved, reverse=True)
    shape, device = shape_of_demo(), find_device("T4")
    before = estimate(shape, PLAN, device, allocator=False).peak_live_bytes
    for line in around.advice[:3]:
        after = estimate(shape, line.plan, device, allocator=False).peak_live_bytes
        assert before - after == pytest.approx(line.saves_bytes, abs=4096)


async def test_notes_are_of_the_plan_that_was_asked_for(
    client: EngineClient, tmp_path: Path
) -> None:
    with open_model("demo") as source:
        assert source.config is not None
        config = {key: value for key, value in source.config.items() if "dtype" not in key}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for plan, notes in ((PLAN, 1), (dataclasses.replace(PLAN, dtype="fp32"), 0)):
        asked = params(plan, model=str(tmp_path))
        around = (await client.request("around", asked)).read(Assessment)
        assert len(around.notes) == notes
        assert all("does not say which type" in note for note in around.notes)


async def test_what_is_exported_is_what_the_command_prints(client: EngineClient) -> None:
    """Everything, also the cures of loading and preparing, which a curve of steps does not have."""
    model = CONFIGS / "llama-3.2-1b.json"
    asked = params(RunPlan(batch=2, sequence=512), model=str(model), device={"name": "T4"})
    report = (await client.request("around", asked)).data["report"]
    with open_model(str(model)) as source:
        expected = printed(report_on(source, RunPlan(batch=2, sequence=512), find_device("T4")))
    assert report == json.loads(json.dumps(expected))
    prepare = next(cure for cure in report["cures"] if cure["kind"] == "prepare")
    assert prepare["change"] == "--kbit-prep none"


async def test_a_map_counts_what_the_preparation_takes(client: EngineClient) -> None:
    """Of experts in 32 bits, more than a short step."""
    model = CONFIGS / "mixtral-8x7b.json"
    plan = RunPlan(sequence=128, lora_targets=("q_proj", "v_proj"))
    asked = params(plan, model=str(model), batches=[1], sequences=[128])
    cells: list[dict[str, Any]] = []
    await client.request("map", asked, on_progress=lambda _, data: cells.append(data))
    truth = estimate(shape_from_config(json.loads(model.read_text())), plan)
    assert truth.peak_phase == "prepare"
    assert cells[0]["peak_live_bytes"] == truth.peak_live_bytes


@pytest.mark.slow
async def test_the_map_says_what_the_estimate_of_each_cell_says(client: EngineClient) -> None:
    small = {"capacity": 700 << 20}
    cells: dict[tuple[int, int], dict[str, Any]] = {}

    def on_cell(_: float, data: dict[str, Any]) -> None:
        cells.setdefault((data["batch"], data["sequence"]), {}).update(data)

    batches, sequences = (1, 2, 4, 8, 16), (256, 1024, 2048)
    asked = params(device=small, batches=batches, sequences=sequences)
    await client.request("map", asked, on_progress=on_cell)
    shape = shape_of_demo()
    device = GpuChoice.of_memory(700 << 20)
    assert device.params == small
    from qtui_core.memory.devices.device import device_of_memory

    here = device_of_memory(700 << 20)
    verdicts = set()
    for (batch, sequence), cell in cells.items():
        plan = dataclasses.replace(PLAN, batch=batch, sequence=sequence)
        truth = estimate(shape, plan, here)
        assert cell["verdict"] == fit_on(truth, here).verdict, (batch, sequence)
        assert cell["peak_live_bytes"] == truth.peak_live_bytes
        verdicts.add(cell["verdict"])
    assert len(cells) == 15
    assert len(verdicts) > 1


async def test_a_turned_knob_takes_the_place_of_the_one_before(client: EngineClient) -> None:
    feed = MemoryFeed(client)
    shown = Shown("demo", plan=PLAN)
    await feed.open(shown)
    slow = asyncio.create_task(client.request("around", params()))
    await asyncio.sleep(0.01)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    shown.plan = dataclasses.replace(PLAN, batch=3)
    assert (await feed.full(shown)).plan.batch == 3


async def test_unknown_families_missing_files_and_impossible_plans(
    client: EngineClient, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256}
    config.write_text(json.dumps({"model_type": "unheard_of", **sizes}))
    named = {"model": str(config)}
    reply = await client.request("open", {**named, "case": ""})
    assert reply.read(ModelFacts).layers == 2
    assert (await client.request("first", params() | named)).data["origin"] == "bounds"
    full = (await client.request("full", params() | named)).read(Answer)
    around = (await client.request("around", params() | named)).read(Assessment)
    assert full.origin == "bounds"
    assert ": assumed)" in around.sentence
    assert around.report["high"]["process_bytes"] > full.process_bytes
    config.write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UsageError, match="does not say hidden_size"):
        await client.request("open", {"model": str(config), "case": ""})
    with pytest.raises(ModelError):
        await client.request("open", {"model": str(tmp_path / "nothing"), "case": ""})
    with pytest.raises(UsageError, match="ZeRO"):
        await client.request("first", params(dataclasses.replace(PLAN, zero=3)))


async def test_a_real_checkpoint_of_another_family_has_bounds_at_once(client: EngineClient) -> None:
    """What it packs is trained by no library, so the plan is of its unpacked weights."""
    named = {"model": str(CONFIGS.parent / "configs2026" / "kimi-k2.5.json")}
    facts = (await client.request("open", {**named, "case": ""})).read(ModelFacts)
    assert (facts.layers, facts.stored.packed_as, facts.traceable) == (61, "stored", True)
    full = (await client.request("full", params() | named)).read(Answer)
    assert (full.origin, full.plan.quant) == ("bounds", "nf4-dq")
    around = (await client.request("around", params() | named)).read(Assessment)
    assert ": assumed)" in around.sentence


@pytest.mark.parametrize("method", ["qlora", "inference"])
async def test_only_a_step_that_the_class_cannot_run_has_bounds(
    client: EngineClient, method: Method
) -> None:
    named = params(RunPlan(method=method), model=str(CONFIGS / "gemma-3n-e4b.json"))
    first = (await client.request("first", named)).read(Answer)
    full = (await client.request("full", named)).read(Answer)
    around = (await client.request("around", named)).read(Assessment)
    origin = "bounds" if method == "qlora" else "tape"
    assert first.origin == full.origin == around.report["origin"] == origin
    assert ("clips weights of AltUp" in around.notes[0]) == (method == "qlora")


async def test_a_process_that_dies_is_told_and_started_again(client: EngineClient) -> None:
    await client.request("devices")
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineLost):
        await client.request("full", params())
    await client.restart()
    assert (await client.request("first", params())).data["stage"] == "first"
