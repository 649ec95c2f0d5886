"""The Codebooks panel at work, with the real engine and a real model on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from quantize_model import PROJ, SHAPE, tensors, write_model
from safetensors.numpy import save_file
from screens import Running, idle, idle_when, screen_text, settled, until
from shorthands import code_occupancy
from textual.pilot import Pilot

from qtui.engine.client import EngineState
from qtui.engine.requests import Injection
from qtui.screen.panel.asking import AskingPhase
from qtui.tui.key_footer import KeyFooter
from qtui.tui.panels.codebooks.panel import CodebooksPanel
from qtui.tui.panels.codebooks.shown import FIRST_SCHEMES
from qtui_core.quant import Scheme, measure
from qtui_core.quant.storage import bit_budget
from qtui_core.quantities import format_count


def panel_of(pilot: Pilot[None]) -> CodebooksPanel:
    return cast(Any, pilot.app).panel


async def ready(pilot: Pilot[None]) -> CodebooksPanel:
    await idle_when(pilot, lambda: panel_of(pilot).phase is AskingPhase.READY)
    return panel_of(pilot)


async def press(pilot: Pilot[None], *keys: str) -> CodebooksPanel:
    """Press keys and wait for what they ask for."""
    await pilot.press(*keys)
    return await ready(pilot)


async def test_shows_the_numbers_of_the_library(running: Running, model: str) -> None:
    async with running((200, 50), model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        text = screen_text(pilot.app)
    assert panel.shown.entry is not None
    assert panel.shown.entry.name == PROJ
    x = tensors()[PROJ]
    for column, scheme in zip(panel.shown.columns, FIRST_SCHEMES, strict=True):
        expected, report = code_occupancy(x, scheme), measure(x, scheme)
        assert column.scheme == scheme
        assert column.counts == tuple(expected.counts.tolist())
        assert column.entropy_bits == expected.entropy_bits
        assert column.error.sqnr_db == report.sqnr_db
        assert f"{expected.entropy_bits:.2f} of 4 bits" in text
        assert f"{report.sqnr_db:.1f}" in text
        assert format_count(int(expected.counts.max())).replace(" ", "") in text
    assert "3 others take other bits" in panel.sentence


async def test_equal_bits(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        before = panel.shown.schemes
        await press(pilot, "equals_sign")
        bits = [column.error.bits_per_parameter for column in panel.shown.columns]
        assert panel.shown.schemes != before
        assert max(bits) - min(bits) <= 0.04
        assert {str(row.original) for row in panel.shown.equal} == set(before)
        for row in panel.shown.equal:
            exact = bit_budget(row.scheme, SHAPE).bits_per_parameter
            assert row.bits == exact
        assert "equal bits 4.5000" in screen_text(pilot.app)
        assert panel.sentence.startswith(("At equal bits", "INT4 beats NF4 here: at equal bits"))
        await press(pilot, "D")  # the first scheme sets the bits
        bits = [column.error.bits_per_parameter for column in panel.shown.columns]
        assert bits[0] == pytest.approx(4.127, abs=0.004)
        for column, each in zip(panel.shown.columns, bits, strict=True):
            assert abs(each - bits[0]) <= 0.02 or column.name == "nvfp4"
        await press(pilot, "equals_sign")
        assert panel.shown.schemes[1:] == (*before[1:3], "fp4:block64:dq", *before[4:])


async def test_blocks_and_nested_blocks(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await press(pilot, "right_square_bracket")
        assert panel.shown.schemes == (
            "nf4:block128", "int4:group128", "int4:group128:asym", "fp4:block128",
            "e2m1:group128", "nvfp4",
        )  # fmt: skip
        await press(pilot, "D", "left_curly_bracket")
        assert panel.shown.schemes[0] == "nf4:block128:dq128"
        await press(pilot, *["left_square_bracket"] * 9)
        assert panel.shown.schemes[0] == "nf4:block16:dq128"
        assert "block 16, dq128" in screen_text(pilot.app)
        await press(pilot, "D")
        assert panel.shown.schemes[0] == "nf4:block16"


async def test_the_budget_is_exact_with_and_without_double_quantization(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await press(pilot, "v", "v")
        text = screen_text(pilot.app)
        assert panel.view.TITLE == "Budget"
        names = [budget.name for budget in panel.shown.budgets]
        assert names[:2] == ["nf4:block64", "nf4:block64:dq"]
        for budget in panel.shown.budgets:
            assert budget.budget == bit_budget(Scheme.parse(budget.name), SHAPE)
        overhead = float(bit_budget(Scheme.parse("nf4:block64:dq"), SHAPE).overhead)
        assert f"{overhead:.4f}" in text
        assert "0.500000" in text
        assert f"{overhead:.3f}" in panel.sentence
        assert "Turn it on" in panel.sentence


async def test_the_construction_goes_step_by_step(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await press(pilot, "V")
        assert panel.view.TITLE == "Construction"
        assert "quantile  " not in screen_text(pilot.app)
        steps = panel.shown.construction
        assert steps is not None
        for step in steps.steps:
            assert step.sentence in panel.sentence
            await press(pilot, "right")
        text = screen_text(pilot.app)
        assert text.count("exact") == 6
        assert "-0.696192801" in text
        await press(pilot, *["left"] * 9)
        assert panel.shown.step == 0


async def test_the_code_under_the_cursor_is_told(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await press(pilot, "down", "right", "right")
        column = panel.shown.column
        assert column is not None
        assert column.name == "int4:group64"
        counts = code_occupancy(tensors()[PROJ], Scheme.parse("int4:group64")).counts
        assert f"code 1010, level -0.857: {counts[2]:,} elements" in screen_text(pilot.app)
        await press(pilot, *["left"] * 5)
        assert ": no element can get it" in screen_text(pilot.app)
        await press(pilot, *["up"] * 5, *["right"] * 16)
        assert f"code 1111, level +1.000: {panel.shown.columns[0].counts[15]:,}" in screen_text(
            pilot.app
        )


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_a_click_chooses_a_code_of_a_scheme(
    running: Running, model: str, size: tuple[int, int]
) -> None:
    async with running(size, model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        assert (panel.shown.chosen, panel.shown.code) != (1, 2)
        places = [
            (put.column, y)
            for y, line in enumerate(panel.body.picture._lines)
            for put in line
            if put.pick == (1, 2)
        ]
        for place in (places[0], places[-1]):
            panel.shown.chosen = panel.shown.code = 0
            assert await pilot.click(panel.body.picture, offset=place)
            await settled(pilot)
            assert (panel.shown.chosen, panel.shown.code) == (1, 2)
        counts = code_occupancy(tensors()[PROJ], Scheme.parse("int4:group64")).counts
        assert f"code 1010, level -0.857: {counts[2]:,} elements" in screen_text(pilot.app)


async def test_schemes_are_typed(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        before = panel.shown.columns
        await pilot.press("s", *"nf4 int9", "enter")
        await settled(pilot)
        assert "Unknown format 'int9'" in screen_text(pilot.app)  # to be corrected
        assert panel.shown.columns is before
        await press(pilot, "ctrl+u", *"nf4, int2:row int8  nf4", "enter")
        assert panel.shown.schemes == ("nf4:block64", "int2:row", "int8:row")
        assert [len(column.bars) for column in panel.shown.columns] == [16, 4, 16]
        assert "int9" not in panel.sentence
        await press(pilot, *["down"] * 2, "right")
        assert "16 codes, levels" in screen_text(pilot.app)  # 256 in 16 bars
        await press(pilot, "x")
        assert panel.shown.schemes == ("nf4:block64", "int2:row")
        await press(pilot, "x")
        await pilot.press("x")
        await settled(pilot)
        assert panel.shown.schemes == ("nf4:block64",)
        assert "The last scheme cannot be removed" in panel.sentence
        await pilot.press("s", *"bf16", "enter")
        await settled(pilot)
        assert "too many to show one by one" in screen_text(pilot.app)
        assert tuple(map(str, panel.shown.asked)) == ("nf4:block64",)
        await press(pilot, "ctrl+u", *"int4:row", "enter")
        assert panel.shown.schemes == ("nf4:block64", "int4:row")  # one more
        assert panel.shown.chosen == 1
        await press(pilot, "up", "x")
        await pilot.press("D")
        await until(pilot, lambda: "Only nf4 and fp4 have" in panel.sentence)
        await press(pilot, "s", *"fp4:block8192 nf4:block32:dq64", "enter")
        assert panel.shown.nested_block == 64  # as it was typed
        await press(pilot, "v", "v", "D")
        assert tuple(map(str, panel.shown.asked)) == ("fp4:block8192", "nf4:block32")
        assert [budget.name for budget in panel.shown.budgets] == [
            "fp4:block8192", "nf4:block32", "nf4:block32:dq64",
        ]  # fmt: skip


async def test_remove_at_equal_bits_takes_the_chosen_one(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await press(pilot, "equals_sign", "down", "x")
        assert panel.shown.asked == (FIRST_SCHEMES[0], *FIRST_SCHEMES[2:])


async def test_changes_of_the_schemes_are_undone_and_made_again(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        before = panel.choice
        await press(pilot, "x", "equals_sign")
        after = panel.choice
        assert after != before
        await press(pilot, "u", "u")
        assert panel.choice == before
        await ready(pilot)
        assert len(panel.shown.columns) == len(FIRST_SCHEMES)
        await press(pilot, "U", "U")
        assert panel.choice == after


async def test_the_construction_names_its_key(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await press(pilot, "V")
        assert panel.view.TITLE == "Construction"
        footer = pilot.app.screen.query_one(KeyFooter)
        await until(pilot, lambda: "Step" in {hint.description for hint in footer.hints})
        assert "Block" not in {hint.description for hint in footer.hints}


async def test_tensors_one_after_the_other(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        seen = []
        side = panel.body.side
        for entry in side.list.entries:
            side.choose(entry)
            await idle_when(pilot, lambda: panel.phase in (AskingPhase.READY, AskingPhase.FAILED))
            assert panel.shown.entry is not None
            name = panel.shown.entry.name
            seen.append(name)
            if name == "odd.empty":
                assert "no codes to count" in panel.sentence
            elif name == "odd.holes":
                assert "2 elements are NaN or infinite" in panel.sentence
            elif name == "odd.zeros":
                assert "Every element is zero" in panel.sentence
            assert screen_text(pilot.app)
        assert {"odd.empty", "odd.holes", "odd.zeros", "odd.scalar"} <= set(seen)


async def test_a_tensor_without_a_finite_value_is_not_said_to_have_no_error(
    running: Running, tmp_path: Path
) -> None:
    path = tmp_path / "lost.safetensors"
    save_file({"lost.weight": np.full((64, 64), np.nan, np.float32)}, path)
    async with running(model=str(path), start_panel="codebooks") as pilot:
        await ready(pilot)
        (behind,) = (s for s in screen_text(pilot.app).splitlines() if s.startswith(" to best"))
    assert set(behind.split()) == {"to", "best", "–"}


async def test_the_tensor_of_the_quantize_panel_is_taken(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        quantize = cast(Any, pilot.app).panel
        await until(pilot, lambda: quantize.phase is AskingPhase.READY)
        await pilot.press("j", "j")
        await until(pilot, lambda: quantize.shown.entry.name != PROJ)
        await until(pilot, lambda: quantize.phase is AskingPhase.READY)
        await pilot.press("3")
        await until(pilot, lambda: panel_of(pilot).PANEL_ID == "codebooks")
        panel = await ready(pilot)
        assert panel.shown.entry.name == quantize.shown.entry.name
        await press(pilot, "t", *"l1up", "enter")  # and then its own
        mine = panel.shown.entry.name
        assert mine != quantize.shown.entry.name
        await pilot.press("2", "3")
        await settled(pilot)
        assert panel.shown.entry.name == mine
        await pilot.press("2", "k")
        await until(pilot, lambda: quantize.phase is AskingPhase.READY)
        await pilot.press("3")
        await idle(pilot)
        await ready(pilot)
        assert panel.shown.entry.name == quantize.shown.entry.name
        assert quantize.phase is AskingPhase.READY
        # An outlier that was put in there is no value of the model, and not in it here.
        before = panel.shown.columns[0].counts
        quantize.look_at(inject=Injection(3, 50.0, 0))
        await until(pilot, lambda: quantize.shown.inject is not None)
        await until(pilot, lambda: quantize.phase is AskingPhase.READY)
        await pilot.press("2", "3")
        await idle(pilot)
        await ready(pilot)
        assert panel.shown.columns[0].counts == before
        assert "without the injected outlier" in screen_text(pilot.app)


async def test_another_model_keeps_the_schemes(
    running: Running, model: str, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other")
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await press(pilot, "right_square_bracket", "v")
        cast(Any, pilot.app).open_model(other)
        await until(pilot, lambda: panel.shown.model == other)
        await ready(pilot)
        assert panel.shown.schemes[0] == "nf4:block128"
        assert panel.view.TITLE == "Levels"


async def test_a_lost_engine_is_told_and_started_again(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        panel.qtui.engine.kill()
        await until(pilot, lambda: panel.phase is AskingPhase.LOST)
        await settled(pilot)
        assert "r starts it again" in screen_text(pilot.app)
        assert "stopped" in panel.sentence
        await press(pilot, "r")
        assert panel.qtui.engine.state is EngineState.RUNNING
        assert "entropy" in screen_text(pilot.app)


async def test_stop_and_go_on(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await pilot.press("right_square_bracket", "escape")
        await until(pilot, lambda: panel.phase in (AskingPhase.STOPPED, AskingPhase.READY))
        await settled(pilot)
        if panel.phase is AskingPhase.STOPPED:
            await press(pilot, "r")
        assert panel.phase is AskingPhase.READY


async def test_a_missing_model_is_told(running: Running, tmp_path: Path) -> None:
    async with running(model=str(tmp_path / "nothing"), start_panel="codebooks") as pilot:
        panel = panel_of(pilot)
        await until(pilot, lambda: panel.phase is AskingPhase.FAILED)
        await settled(pilot)
        assert "nothing" in panel.sentence


async def test_export_and_copy(running: Running, model: str, tmp_path: Path) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        copied = panel.copy_text()
        assert copied is not None
        assert PROJ in copied
        assert "entropy" in copied
        assert panel.sentence in copied
        await press(pilot, "equals_sign")
        await pilot.press("e")
        await until(pilot, lambda: bool(list(tmp_path.glob("*.json"))))
        data = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert data["panel"] == "codebooks"
    assert data["tensor"] == PROJ
    assert len(data["equal_bits"]) == len(FIRST_SCHEMES)
    x = tensors()[PROJ]
    for each in data["schemes"]:
        assert sum(each["counts"]) == x.size
        assert len(each["levels"]) == 16
        np.testing.assert_allclose(sum(each["expected"]), 1)
    assert data["budgets"][0]["exact"]["codes"] == "4"
    assert len(data["nf4_construction"]["levels"]) == 16
