"""The Quantize panel after its engine was killed: every order of keys, the real child."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
from processes import alive
from quantize_model import PROJ, write_model
from screens import Running, idle, screen_text, settled, until
from textual.pilot import Pilot

from qtui.engine.client import EngineState
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.tensors.list import TensorOrder
from qtui.tui.panels.quantize.panel import QuantizePanel


def panel_of(pilot: Pilot[None]) -> QuantizePanel:
    return cast(Any, pilot.app).panel


async def ready(pilot: Pilot[None]) -> QuantizePanel:
    panel = panel_of(pilot)
    await until(
        pilot,
        lambda: (
            panel.phase is AskingPhase.READY
            and None not in panel.shown.errors
            and panel.shown.element is not None
            and not panel.qtui.engine.busy
        ),
    )
    await settled(pilot)
    return panel


async def killed(pilot: Pilot[None]) -> QuantizePanel:
    """A panel whose engine has just been killed, as by the kernel."""
    panel = await ready(pilot)
    pid = panel.qtui.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(pilot, lambda: panel.phase is AskingPhase.LOST)
    await settled(pilot)
    return panel


def footer(pilot: Pilot[None]) -> str:
    return screen_text(pilot.app).splitlines()[-1]


async def test_whatever_is_pressed_after_a_loss_r_works(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        for keys in (
            ["down", "down", "up"], ["T"], ["f", "down", "enter"], [")", "X", "down"],
            ["slash", *"up_proj", "enter"], ["slash", *"up_proj", "escape"],
            ["slash", *"zip", "enter"], ["s", *"int8", "enter", "escape"], ["u", "U"],
            ["down", "escape"], ["enter", "m", "left", "enter"], ["z", "z"],
            ["F", "t", "down", "enter"],
        ):  # fmt: skip
            panel = await killed(pilot)
            for key in keys:
                await pilot.press(key)
            await idle(pilot)
            if panel.body.typing:
                await pilot.press("escape")
                await pilot.pause()
            assert panel.phase is AskingPhase.LOST, keys
            assert "r starts it again." in screen_text(pilot.app), keys
            assert "Reading" not in screen_text(pilot.app), keys
            assert "r Restart" in footer(pilot), keys
            assert "Stop" not in footer(pilot), keys
            entry = panel.body.side.list.current
            await pilot.press("r")
            await ready(pilot)
            assert panel.shown.entry is entry, keys
            assert panel.qtui.engine.state is EngineState.RUNNING, keys
            await as_it_began(pilot)


async def as_it_began(pilot: Pilot[None]) -> None:
    """The tensor, the filter and the order that a new panel has."""
    panel = panel_of(pilot)
    while panel.body.side.list.order is not TensorOrder.MODEL:
        await pilot.press("T")
    panel.body.side.list.set_filter("")
    panel.body.side.list.select(PROJ)
    await ready(pilot)


async def test_an_engine_that_does_not_answer_is_told_ended_and_restarted(
    running: Running, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("client", "waiting"):  # longer than between two signs of life
        monkeypatch.setattr(f"qtui.engine.{module}.SILENT_AFTER_SECONDS", 2.0)
        monkeypatch.setattr(f"qtui.engine.{module}.LOOK_SECONDS", 0.1)
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        said = panel.sentence
        for way_out in ("SIGCONT", "r", "escape"):
            pid = panel.qtui.engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await pilot.press("down")
            await until(pilot, lambda: panel.silence != "")
            await settled(pilot)
            assert panel.sentence.startswith("The engine has not answered for ")
            assert "end it with Esc and start it again with r" in panel.sentence
            assert "no answer: this is old" in screen_text(pilot.app)
            assert "r Restart" in footer(pilot)
            if way_out == "SIGCONT":
                os.kill(pid, signal.SIGCONT)
            else:
                await pilot.press(way_out)
            if way_out == "escape":
                await until(pilot, lambda: panel.phase is AskingPhase.LOST)
                assert "r starts it again." in screen_text(pilot.app)
                await pilot.press("r")
            await until(pilot, lambda: not panel.silence and panel.phase is AskingPhase.READY)
            await ready(pilot)
            assert "no answer" not in screen_text(pilot.app)
            assert (panel.qtui.engine.pid == pid) == (way_out == "SIGCONT")
            assert alive(pid) == (way_out == "SIGCONT")
            await pilot.press("up")
            await ready(pilot)
            assert panel.sentence == said


async def test_keys_that_come_with_the_kill(running: Running, model: str) -> None:
    """Nothing shows yet that the child is dead when the next request is sent to it."""
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        pid = panel.qtui.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for key in ("down", "f", "down", "enter", "down"):
            await pilot.press(key)
        await until(pilot, lambda: panel.phase is AskingPhase.LOST)
        await idle(pilot)
        assert panel.phase is AskingPhase.LOST
        await pilot.press("r")
        await ready(pilot)


async def test_a_restarted_engine_that_is_killed_again(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await killed(pilot)
        await pilot.press("r")
        await until(pilot, lambda: panel.qtui.engine.pid is not None)
        pid = panel.qtui.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # while it starts
        await until(pilot, lambda: panel.phase is AskingPhase.LOST)
        await pilot.press("down", "r")
        await ready(pilot)


async def test_worst_first_is_measured_after_the_restart(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await killed(pilot)
        await pilot.press("T", "T")
        assert panel.body.side.list.order is TensorOrder.WORST
        await pilot.press("r")
        await ready(pilot)
        await until(pilot, lambda: panel.body.side.ranked_by)
        assert " dB" in screen_text(pilot.app).splitlines()[6]


async def test_another_model_after_a_loss(running: Running, model: str, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other")
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await killed(pilot)
        panel.open_model(other)
        await until(pilot, lambda: panel.shown.model == other)
        await ready(pilot)
        assert panel.shown.entry is not None
        assert panel.shown.entry.name == PROJ


# Opening


async def test_a_model_that_fails_keeps_the_open_one(
    running: Running, model: str, tmp_path: Path
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        before = screen_text(pilot.app).splitlines()
        panel.open_model(str(tmp_path / "nowhere"))
        await until(pilot, lambda: "nowhere" in panel.sentence)
        await ready(pilot)
        assert "nowhere" in panel.sentence
        after = screen_text(pilot.app).splitlines()
        assert after[1:-5] == before[1:-5]
        await pilot.press("down", "up")
        await idle(pilot)
        await ready(pilot)
        assert panel.sentence.startswith("int4:group64")


async def test_the_open_model_stays_until_the_next_one_has_come(
    running: Running, model: str, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other")
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        picture = panel.body.heatmap.grid
        original = panel.feed.open

        gate = asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            await gate.wait()
            return await original(*arguments)

        panel.feed.open = slow  # type: ignore[method-assign]
        panel.open_model(other)
        await until(pilot, lambda: panel.phase is AskingPhase.OPENING)
        await settled(pilot)
        assert panel.body.heatmap.grid is picture
        assert panel.shown.model == model
        assert "Opening" in screen_text(pilot.app)
        await pilot.press("escape")
        await ready(pilot)
        assert "was stopped" in panel.sentence
        assert panel.shown.model == model
        panel.open_model(other)
        await pilot.press("down", "X")  # nothing is read of what is about to go
        gate.set()
        await until(pilot, lambda: panel.shown.model == other)
        await ready(pilot)
        assert panel.shown.entry is not None
        assert panel.shown.entry.name == PROJ


async def test_what_looks_ahead_takes_no_answer_from_a_panel(
    running: Running, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The panel asks while the device is being identified; the model's header is read after
    that."""
    gate = asyncio.Event()

    async def named(*_: Any) -> str:
        await gate.wait()
        return "no GPU"

    monkeypatch.setattr("qtui.tui.engines.device_of", named)
    async with running(model=model, look_ahead=True) as pilot:
        app = cast(Any, pilot.app)
        await until(pilot, lambda: "engine" in app.__dict__)
        await app.engine.start()
        os.kill(app.engine.pid, signal.SIGSTOP)  # it gets both requests at once
        await app.action_show_panel("quantize")
        await until(pilot, lambda: len(app.engine._calls) == 1)
        gate.set()
        await until(pilot, lambda: len(app.engine._calls) == 2)
        os.kill(app.engine.pid, signal.SIGCONT)
        await ready(pilot)
        assert app.model_opened


async def test_stopping_the_first_model(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = panel_of(pilot)
        if panel.phase is AskingPhase.OPENING:
            await pilot.press("escape")
            await pilot.pause()
            if panel.phase is AskingPhase.STOPPED:
                assert "r continues" in screen_text(pilot.app)
                await pilot.press("r")
        await ready(pilot)
