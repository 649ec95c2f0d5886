"""The Quantize panel while it waits, after a failure, and when the engine dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save_file
from screens import Running, idle, screen_text, settled, until
from textual.pilot import Pilot

from qtui.engine.client import EngineState
from qtui.screen.panel.asking import AskingPhase
from qtui.tui.panels.quantize.panel import QuantizePanel


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("large") / "large.safetensors"
    x = np.ones((4096, 8192), np.float16)
    x[::3] = -0.5
    save_file({"large.weight": x}, path)
    return str(path)


def panel_of(pilot: Pilot[None]) -> QuantizePanel:
    return cast(Any, pilot.app).panel


async def in_phase(pilot: Pilot[None], phase: AskingPhase) -> QuantizePanel:
    panel = panel_of(pilot)
    await until(pilot, lambda: panel.phase is phase)
    await settled(pilot)
    return panel


async def test_opening_says_so_at_once(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = panel_of(pilot)
        if panel.phase is AskingPhase.OPENING:  # on a fast machine it is already over
            assert "Opening" in screen_text(pilot.app)
        await in_phase(pilot, AskingPhase.READY)
        assert "Opening" not in screen_text(pilot.app)


async def test_a_model_that_is_not_there(running: Running, model: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    async with running(model=missing, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.FAILED)
        assert "nowhere" in panel.sentence
        assert "nowhere" in screen_text(pilot.app)
        assert panel.body.heatmap.has_class("-trouble")
        cast(Any, pilot.app).open_model(model)
        await in_phase(pilot, AskingPhase.READY)
        assert not panel.body.heatmap.has_class("-trouble")


@pytest.mark.parametrize("known", [True, False])
async def test_a_config_without_weights(running: Running, tmp_path: Path, known: bool) -> None:
    (tmp_path / "bare").mkdir()
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if known:
        config |= {
            "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
            "num_attention_heads": 4, "vocab_size": 1000, "tie_word_embeddings": True,
        }  # fmt: skip
    # 1000·64 embedded, and 3 layers of 4·64·64 + 3·64·176 + 2·64, and a norm.
    said = "215 K parameters, no weights" if known else "LlamaForCausalLM  no weights"
    (tmp_path / "bare" / "config.json").write_text(json.dumps(config))
    path = str(tmp_path / "bare" / "config.json")
    async with running(model=path, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.FAILED)
        assert "weights" in panel.sentence
        await until(pilot, lambda: said in screen_text(pilot.app))
        for key in ("X", "f", "escape", "m", "enter", "T", "n", "slash", "escape", "y", "e", "z"):
            await pilot.press(key)
        await settled(pilot)


async def test_work_shows_how_far_it_is_and_stops(running: Running, large: str) -> None:
    async with running(model=large, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.WORKING)
        await until(pilot, lambda: panel.body.title_line.fraction is not None)
        assert panel.body.title_line.activity in screen_text(pilot.app)
        await pilot.press("escape")
        await settled(pilot)
        assert panel.phase is AskingPhase.STOPPED
        assert "Stopped; r continues" in screen_text(pilot.app)
        assert not panel.qtui.engine.busy
        await pilot.press("r")
        await in_phase(pilot, AskingPhase.READY)
        assert "33,554,432" in screen_text(pilot.app)


async def test_the_sentence_is_about_what_is_done(
    running: Running, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not about the previous scheme, and names the scheme and the tensor."""
    monkeypatch.setattr("qtui.screen.panel.asking.GRACE_SECONDS", 0.05)
    async with running(model=large, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.WORKING)
        await until(pilot, lambda: panel.sentence.startswith("Computing"))
        assert "int4:group64" in panel.sentence
        assert "large.weight" in panel.sentence
        await in_phase(pilot, AskingPhase.READY)
        assert panel.sentence.startswith("int4:group64")
        await pilot.press("f", *"int5", "enter")
        await until(pilot, lambda: panel.phase is AskingPhase.WORKING)
        await until(pilot, lambda: not panel.sentence.startswith("int4:group64"))
        assert panel.sentence.startswith("Computing what int5:group64 does to all 33,554,432")
        assert "|error| of int4:group64" in screen_text(pilot.app)  # until the next one comes
        await pilot.press("escape")
        await settled(pilot)
        assert panel.phase is AskingPhase.STOPPED
        assert panel.sentence == (
            "Stopped before all of large.weight was measured under int5:group64; r continues."
        )
        assert panel.body.heatmap.grid is None  # it was of int4
        data = panel.export_data()
        assert "maps" not in (data or {})
        await pilot.press("r")
        await in_phase(pilot, AskingPhase.READY)
        assert panel.sentence.startswith("int5:group64")
        assert "|error|, max" in screen_text(pilot.app)


async def test_the_engine_killed_at_work_and_started_again(running: Running, large: str) -> None:
    async with running(model=large, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.WORKING)
        await until(pilot, lambda: panel.qtui.engine.busy)
        pid = panel.qtui.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await in_phase(pilot, AskingPhase.LOST)
        text = screen_text(pilot.app)
        assert "The engine was killed" in text
        assert "r starts it again." in text
        for key in (
            "f", "down", "enter", "X", "right_parenthesis", "down", "up", "m", "T",
        ):  # fmt: skip  # nothing hurts the screen
            await pilot.press(key)
        await settled(pilot)
        assert panel.phase is AskingPhase.LOST
        await pilot.press("r")
        await in_phase(pilot, AskingPhase.READY)
        assert panel.qtui.engine.pid not in (None, pid)


async def test_the_engine_stopped_while_idle(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.READY)
        await until(pilot, lambda: not panel.qtui.engine.busy)
        entry = panel.shown.entry
        panel.qtui.engine.kill()
        await in_phase(pilot, AskingPhase.LOST)
        assert "The engine was stopped" in screen_text(pilot.app)
        await pilot.press("r")
        await in_phase(pilot, AskingPhase.READY)
        assert panel.shown.entry is entry
        assert panel.qtui.engine.state is EngineState.RUNNING


async def test_another_model_while_one_is_read(running: Running, model: str, large: str) -> None:
    async with running(model=large, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.WORKING)
        cast(Any, pilot.app).open_model(model)
        await until(pilot, lambda: panel.shown.model == model)
        await in_phase(pilot, AskingPhase.READY)
        assert panel.shown.entry is not None
        assert panel.shown.entry.elements == 15_360
        text = screen_text(pilot.app)
        assert "large.weight" not in text
        assert "all 15,360 values" in text


async def test_moving_fast_reads_only_where_it_stops(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.READY)
        asked: list[str] = []
        original = panel.qtui.engine.request

        async def spy(method: str, params: Any = None, **options: Any) -> Any:
            if method == "map":
                asked.append(params["tensor"])
            return await original(method, params, **options)

        panel.qtui.engine.request = spy  # type: ignore[method-assign]
        for _ in range(3):
            panel.body.side.list.action_move(1)
        await idle(pilot)
        assert panel.phase is AskingPhase.READY
        assert panel.shown.entry is not None
        assert asked == [panel.shown.entry.name]


@pytest.mark.own_children
async def test_leaving_while_the_engine_works_ends_it(running: Running, large: str) -> None:
    async with running(model=large, start_panel="quantize") as pilot:
        panel = await in_phase(pilot, AskingPhase.WORKING)
        await until(pilot, lambda: panel.qtui.engine.pid is not None)
        pid = panel.qtui.engine.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
