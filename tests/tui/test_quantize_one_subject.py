"""Everything shown together belongs to one tensor, however slowly and in whatever order the engine
answers; and nothing is computed that is no longer wanted."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from quantize_model import PROJ
from safetensors.numpy import save_file
from screens import Running, idle, screen_lines, screen_text, settled, until
from textual.pilot import Pilot

from qtui.engine.client import EngineClient
from qtui.screen.panel.asking import AskingPhase
from qtui.tui.panels.quantize.activations.view import LONGEST_PROMPT, ActivationsView
from qtui.tui.panels.quantize.outliers.view import OutliersView
from qtui.tui.panels.quantize.panel import QuantizePanel

OTHER = "model.layers.1.mlp.down_proj.weight"


class Gate:
    """Holds back the answers to some questions until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: set[str] = set()
        self.cancelled: list[str] = []
        self._open = asyncio.Event()
        ask = EngineClient.request

        async def request(client: EngineClient, method: str, *args: Any, **options: Any) -> Any:
            if method in self.held:
                try:
                    await self._open.wait()
                except asyncio.CancelledError:
                    self.cancelled.append(method)
                    raise
            return await ask(client, method, *args, **options)

        monkeypatch.setattr(EngineClient, "request", request)

    def open(self) -> None:
        self.held.clear()
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture(autouse=True)
def model(model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """By a short relative name, which the header line shows."""
    monkeypatch.chdir(Path(model).parent)
    return Path(model).name


def panel_of(pilot: Pilot[None]) -> QuantizePanel:
    return cast(Any, pilot.app).panel


async def ready(pilot: Pilot[None]) -> QuantizePanel:
    await idle(pilot)
    panel = panel_of(pilot)
    assert panel.phase is AskingPhase.READY
    return panel


def drawn(panel: QuantizePanel, name: str) -> bool:
    """Whether a tensor is chosen and its map is drawn."""
    shown = panel.shown
    return shown.entry is not None and shown.entry.name == name and shown.map is not None


def outliers_of(panel: QuantizePanel) -> OutliersView:
    return next(view for view in panel.views if isinstance(view, OutliersView))


async def test_columns_of_one_tensor_never_stand_beside_elements_of_another(
    running: Running, model: str, gate: Gate
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("v")
        await ready(pilot)
        view = outliers_of(panel)
        before = panel.sentence
        assert view.found.attribution is not None
        assert view.found.decomposition is not None
        gate.held = {"granularities", "attribution", "decomposition"}
        panel.body.side.list.select(OTHER)
        await until(pilot, lambda: "granularities" in panel.body.title_line.activity or (
            view.found.numbers is not None and view.found.granularities is None
        ))  # fmt: skip
        assert (view.found.granularities, view.found.attribution, view.found.decomposition) == (
            None,
            None,
            None,
        )
        await until(pilot, lambda: "Computing" in panel.sentence)
        await settled(pilot)
        assert "LLM.int8() of" not in screen_text(pilot.app)
        assert panel.sentence != before
        assert OTHER in panel.sentence
        assert "Computing" in panel.sentence
        await pilot.press("escape")
        await settled(pilot)
        assert panel.phase is AskingPhase.STOPPED
        assert "Stopped before all of" in panel.sentence
        assert view.found.decomposition is None
        gate.open()
        await pilot.press("r")
        await ready(pilot)
        assert view.found.decomposition is not None
        assert "LLM.int8() of" in screen_text(pilot.app)


async def test_outliers_of_a_tensor_go_when_those_of_the_next_are_long_in_coming(
    running: Running, model: str, gate: Gate
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("v")
        await ready(pilot)
        assert "beyond 6 sigma" in screen_text(pilot.app)
        gate.held = {"outliers"}
        panel.body.side.list.select(OTHER)
        await until(pilot, lambda: "Reading all" in screen_text(pilot.app))
        await settled(pilot)
        assert "beyond 6 sigma" not in screen_text(pilot.app)
        assert "Reading all 15,360 elements" in screen_text(pilot.app)
        await pilot.press("escape")
        await settled(pilot)
        assert "Stopped; r continues" in screen_text(pilot.app)
        await pilot.press("r")  # and what was stopped is not said to be so any longer
        await until(pilot, lambda: "Stopped" not in screen_text(pilot.app))
        await settled(pilot)
        assert "Stopped" not in screen_text(pilot.app)
        gate.open()
        await ready(pilot)
        assert "beyond 6 sigma" in screen_text(pilot.app)


async def test_bars_of_an_outlier_before_go_when_the_next_is_slow(
    running: Running, model: str, gate: Gate
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("v")
        await ready(pilot)
        await pilot.press("i", "ctrl+u", *"9 at 1,1", "enter")
        await ready(pilot)
        view = outliers_of(panel)
        assert view.found.granularities is not None
        gate.held = {"granularities"}
        await pilot.press("plus")
        await until(pilot, lambda: view.found.granularities is None)
        await until(pilot, lambda: "9 at" not in panel.sentence)
        await settled(pilot)
        assert view.found.granularities is None
        assert "before after" not in screen_text(pilot.app)
        assert "9 at" not in panel.sentence
        gate.open()
        await ready(pilot)
        assert "before after" in screen_text(pilot.app)


async def test_all_cells_of_the_map_of_a_taller_tensor_are_drawn(
    running: Running, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a.weight": rng.standard_normal((4, 300)).astype(np.float32),
        "b.weight": rng.standard_normal((60_000, 300)).astype(np.float32),
    }
    save_file(tensors, tmp_path / "two.safetensors")
    async with running(model=str(tmp_path / "two.safetensors"), start_panel="quantize") as pilot:
        panel = await ready(pilot)
        for name in ("b.weight", "a.weight", "b.weight", "a.weight"):
            panel.body.side.list.select(name)  # soon enough for the picture before to stay
            await until(pilot, partial(drawn, panel, name))
            grid, heatmap = panel.body.heatmap.grid, panel.body.heatmap
            assert grid is not None
            assert heatmap.capacity(grid.rows)[1] >= grid.grid_columns
            assert heatmap.places.drawn(grid)[1] >= grid.grid_columns


async def test_every_press_zooms_however_slow_the_map_is(
    running: Running, model: str, gate: Gate
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        panel.body.show_picture()
        gate.held = {"map"}
        await pilot.press("plus", "plus", "plus")
        gate.open()
        await ready(pilot)
        grid = panel.body.maps.pictures[0].grid
        assert (grid.height, grid.width) == (12, 20)  # an eighth of 96 x 160


async def test_a_window_is_of_one_model(running: Running, model: str, tmp_path: Path) -> None:
    tensor = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
    save_file({PROJ: tensor}, tmp_path / "tiny.safetensors")
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        panel.body.show_picture()
        await pilot.press("plus")
        await ready(pilot)
        assert panel.body.maps.window is not None
        panel.qtui.open_model(str(tmp_path / "tiny.safetensors"))
        await until(pilot, lambda: panel.shown.model != model)
        await ready(pilot)
        assert panel.body.maps.window is None
        assert panel.body.maps.pictures[0].grid.rows == 8


async def test_nothing_has_no_legend(running: Running, model: str, gate: Gate) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("b")
        await ready(pilot)
        gate.held = {"map"}
        panel.body.side.list.select(OTHER)
        await until(pilot, lambda: "Reading all" in screen_text(pilot.app))
        await settled(pilot)
        assert "Reading all" in screen_text(pilot.app)
        assert "|error|" not in screen_text(pilot.app)
        assert "all 0" not in screen_text(pilot.app)
        assert panel.export_table() is None


async def test_measuring_all_tensors_can_be_stopped(
    running: Running, model: str, gate: Gate
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        chosen = panel.shown.entry
        gate.held = {"rank"}
        await pilot.press("w")
        await settled(pilot)
        assert "Stop" in screen_lines(pilot.app)[-1]
        await pilot.press("escape")
        await settled(pilot)
        assert gate.cancelled == ["rank"]
        assert panel.phase is AskingPhase.READY  # what is shown stays true
        assert "Stop" not in screen_lines(pilot.app)[-1]
        assert panel.shown.entry is chosen
        gate.open()
        await pilot.press("w")
        await until(pilot, lambda: bool(panel.body.side.ranked_by))
        await ready(pilot)
        assert "worst 1 of" in screen_text(pilot.app)


@pytest.mark.parametrize(
    "keys", [["f", *"int5", "enter"], ["right_parenthesis"], ["X"]], ids=["f", ")", "X"]
)
async def test_another_scheme_calls_off_the_way_to_the_worst_tensor(
    running: Running, model: str, gate: Gate, keys: list[str]
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        chosen = panel.shown.entry
        gate.held = {"rank"}
        await pilot.press("w")
        await pilot.press(*keys)
        await ready(pilot)
        gate.open()
        await settled(pilot)
        assert gate.cancelled == ["rank"]
        assert not panel.ranking.running
        assert panel.shown.entry is chosen


async def test_a_prompt_that_is_too_long_stays_to_be_cut(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("v", "v")
        await pilot.press("I")
        view = panel.view
        assert isinstance(view, ActivationsView)
        view.field.value = "\U0001f600" * (LONGEST_PROMPT + 1)
        await pilot.press("enter")
        await until(pilot, lambda: "put it into a file" in panel.sentence)
        assert view.typing
        await pilot.press("backspace")
        await pilot.press("enter")
        await until(pilot, lambda: not view.typing)
        await until(pilot, lambda: view.trouble != "")
        assert "bytes" not in view.trouble  # it was small enough for a request


async def test_no_key_is_lost_and_each_turns_the_scheme_it_was_pressed_for(
    running: Running, model: str, gate: Gate
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        assert [str(scheme) for scheme in panel.shown.schemes] == ["int4:group64", "nf4:block64"]
        gate.held = {"measure"}
        larger = "right_square_bracket"
        await pilot.press("f", *"int6", "enter", larger, "X", larger)
        assert [str(scheme) for scheme in panel.shown.schemes] == ["int6:group128", "nf4:block128"]
        assert panel.shown.active == 1
        gate.open()
        await ready(pilot)


async def test_a_key_that_is_refused_holds_up_none_behind_it(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        await pilot.press("right_curly_bracket")  # an integer has no nested blocks
        assert str(panel.shown.scheme) == "int4:group64"
        assert panel.refusal
        await pilot.press("f", *"int5", "enter")
        assert str(panel.shown.scheme) == "int5:group64"
        assert not panel.refusal
        await ready(pilot)


async def test_blocks_in_codebooks_take_every_key(running: Running, model: str, gate: Gate) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = cast(Any, pilot.app).panel
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        gate.held = {"codebooks"}
        await pilot.press("right_square_bracket", "right_square_bracket", "D", "D", "D")
        gate.open()
        await until(pilot, lambda: "nf4:block256:dq" in panel.shown.schemes)
        await pilot.press("s", *"int4:row int4:row", "enter")
        await until(pilot, lambda: panel.shown.schemes == ("int4:row",))
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: "None of these schemes has blocks" in panel.sentence)
        assert "no blocks, no dq" in screen_text(pilot.app)
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: "Double quantization is off" in panel.sentence)
