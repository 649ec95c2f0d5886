"""The Outliers view of the Quantize panel, with the real engine and a real model on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from quantize_model import PROJ, tensors
from screens import (
    Running,
    check_golden,
    goldens,
    idle,
    resized,
    screen_lines,
    screen_text,
    settled,
    until,
)
from textual.pilot import Pilot

from qtui.engine.requests import Injection
from qtui.screen.panel.asking import AskingPhase
from qtui.tui.panels.quantize.outliers.detection import Detection
from qtui.tui.panels.quantize.outliers.view import OutliersView
from qtui.tui.panels.quantize.panel import QuantizePanel
from qtui_core.quant import Scheme, attribute_error, find_outliers, keep_columns, measure

SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def model(model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """By a short relative name, which the header line shows."""
    monkeypatch.chdir(Path(model).parent)
    return Path(model).name


def panel_of(pilot: Pilot[None]) -> QuantizePanel:
    return cast(Any, pilot.app).panel


async def ready(pilot: Pilot[None]) -> OutliersView:
    """The view, once everything is read and drawn."""
    await idle(pilot)
    panel = panel_of(pilot)
    assert panel.phase in (AskingPhase.READY, AskingPhase.FAILED)
    view = panel.view
    assert isinstance(view, OutliersView)
    return view


async def to_outliers(pilot: Pilot[None]) -> OutliersView:
    await until(pilot, lambda: panel_of(pilot).phase in (AskingPhase.READY, AskingPhase.FAILED))
    await pilot.press("v")
    return await ready(pilot)


async def type_outlier(pilot: Pilot[None], text: str) -> OutliersView:
    await pilot.press("i", "ctrl+u", *text, "enter")
    return await ready(pilot)


@pytest.mark.parametrize(("keys", "name"), [("m", "threshold"), ("M", "column")])
async def test_golden_of_the_other_detections(
    running: Running, model: str, keys: str, name: str
) -> None:
    async with running((80, 24), model=model, start_panel="quantize", color="16") as pilot:
        await to_outliers(pilot)
        await pilot.press(keys)
        await ready(pilot)
        check_golden(f"outliers_{name}_80x24", screen_text(pilot.app))


async def test_golden(running: Running, model: str) -> None:
    with goldens() as check:
        async with running(SIZES[0], model=model, start_panel="quantize", color="16") as pilot:
            await to_outliers(pilot)
            for state in ("", "injected_"):
                if state:
                    await type_outlier(pilot, "40 sigma at 50,90")
                for size in SIZES:
                    await resized(pilot, size)
                    check(f"outliers_{state}{size[0]}x{size[1]}", screen_text(pilot.app))


async def test_what_is_shown_is_what_the_library_says(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        text = screen_text(pilot.app)
        sentence = panel_of(pilot).sentence
    x, scheme = tensors()[PROJ], Scheme.parse("int4")
    found = find_outliers(x)
    assert f"{found.count:,} beyond 6 sigma, in {len(found.columns)} column" in text
    attribution = attribute_error(x, scheme)
    kept = keep_columns(x, attribution, [17])
    assert view.found.attribution is not None
    assert view.found.attribution.tried[0].caused_share == kept.caused_share
    assert f"{kept.caused_share:.0%}" in text
    for name in ("tensor", "row", "column", "group128", "group32"):
        report = measure(x, Scheme.parse(f"int4:{name}"))
        assert any(
            line.split()[-1] == f"{report.sqnr_db:.1f}"
            for line in text.splitlines()
            if f" {name} " in line and "." in line.split()[-1]
        )
    assert sentence.startswith("At 6 sigma, 1 of 160 columns carries ")
    assert f"from {attribution.sqnr_db:.1f} to {kept.sqnr_db:.1f} dB" in sentence


async def test_an_outlier_goes_through_the_whole_panel(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        assert view.found.numbers is not None
        std = view.found.numbers.std
        assert std is not None
        await type_outlier(pilot, "20 sigma at 5,40")
        panel = panel_of(pilot)
        assert panel.shown.inject == Injection(column=40, value=20 * std, row=5)
        changed = tensors()[PROJ].copy()
        changed[5, 40] = 20 * std
        assert view.found.granularities is not None
        for before, after in zip(
            view.found.granularities.before, view.found.granularities.rows, strict=True
        ):
            assert after.mse == measure(changed, Scheme.parse(after.scheme)).mse
            assert before.mse == measure(tensors()[PROJ], Scheme.parse(before.scheme)).mse
        assert "An outlier of 20 sigma at (5, 40)" in panel.sentence
        await pilot.press("V")  # the maps
        await until(pilot, lambda: panel.phase is AskingPhase.READY and panel.shown.map is not None)
        assert panel.shown.numbers is not None
        assert panel.shown.numbers.statistics.max == pytest.approx(max(changed.max(), 20 * std))
        errors = panel.shown.errors[0]
        assert errors is not None
        assert errors.sqnr_db == measure(changed, Scheme.parse("int4")).sqnr_db


async def test_doubling_halving_and_taking_it_out(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        panel = panel_of(pilot)
        await type_outlier(pilot, "3 at column 8")
        assert panel.shown.inject == Injection(column=8, value=3.0)
        await pilot.press("plus", "plus", "minus")
        await ready(pilot)
        assert panel.shown.inject == Injection(column=8, value=6.0)
        assert view.found.numbers is not None
        assert view.found.numbers.top[0].value == 6.0
        pilot.app.set_focus(view.bars)
        await pilot.press("plus")
        await ready(pilot)
        assert panel.shown.inject == Injection(column=8, value=12.0)
        await pilot.press("x")
        await ready(pilot)
        assert panel.shown.inject is None
        assert view.found.granularities is not None
        assert view.found.granularities.before == ()
        assert panel.sentence.startswith("At 6 sigma, 1 of 160 columns")


async def test_the_field_keeps_the_keys_of_the_panel_and_escape_leaves_it(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        panel = panel_of(pilot)
        await pilot.press("i", "ctrl+u", "v", "s", "i", "x")
        assert view.typing
        assert view.line.field.value == "vsix"
        await pilot.press("enter")
        await settled(pilot)
        assert "'vsix' is no outlier" in panel.sentence
        assert view.typing  # it can be corrected
        await pilot.press("escape")
        await settled(pilot)
        assert not view.typing
        assert panel.shown.inject is None
        assert panel.view is view


async def test_arrows_in_the_field_change_the_outlier_at_once(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        await pilot.press("i", "ctrl+u", *"2 at 1,1", "up")
        await ready(pilot)
        assert view.typing
        assert view.line.field.value == "4 at 1,1"
        assert panel_of(pilot).shown.inject == Injection(column=1, value=4.0, row=1)


async def test_the_threshold_moves(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        found = view.found.decomposition
        assert found is not None
        start = found.points[view.found.chosen]
        assert start.columns == 1
        text = screen_text(pilot.app)
        assert "1 of 160 columns in 16 bits" in text
        assert f"SQNR {start.sqnr_db:.1f} dB" in text
        await pilot.press("greater_than_sign")
        await settled(pilot)
        lower = found.points[view.found.chosen]
        assert lower.threshold < start.threshold
        assert f"{lower.columns} of 160 columns in 16 bits" in screen_text(pilot.app)
        await pilot.press(*["less_than_sign"] * 5)
        assert found.points[view.found.chosen].columns == 0


async def test_detection_by_sigma(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        x = tensors()[PROJ]
        await pilot.press("full_stop", "full_stop")  # at once, as over a slow line
        await ready(pilot)
        found = find_outliers(x, sigma=8.0)
        assert f"{found.count:,} beyond 8 sigma, in 1 column" in screen_text(pilot.app)
        assert panel_of(pilot).sentence.startswith("At 8 sigma, 1 of 160 columns carries ")
        await pilot.press(*["full_stop"] * 6)
        await ready(pilot)
        assert view.detection.sigma == 12.0
        assert "3 to 12 sigma" in panel_of(pilot).sentence
        await pilot.press("comma")
        await ready(pilot)
        assert view.found.numbers is not None
        assert view.found.numbers.limit == 11.0
        panel_of(pilot).body.side.list.select("model.layers.1.mlp.down_proj.weight")
        await ready(pilot)
        y = tensors()["model.layers.1.mlp.down_proj.weight"].astype(np.float64)
        largest = f"the largest is {(np.abs(y - y.mean()) / y.std()).max():.2g} sigma"
        text = screen_text(pilot.app)
        assert "no element beyond 11 sigma" in text
        assert largest in text
        assert f"({largest})" in panel_of(pilot).sentence


async def test_detection_by_threshold_is_the_slider(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        x = np.abs(tensors()[PROJ])
        slider = view.found.decomposition.points[view.found.chosen].threshold
        await pilot.press("m")
        await ready(pilot)
        for key in ("", "greater_than_sign", "less_than_sign", "comma", "full_stop"):
            if key:
                await pilot.press(key)
                await ready(pilot)
            point = view.found.decomposition.points[view.found.chosen]
            beyond = x >= np.float32(point.threshold)
            assert (view.found.numbers.detection, view.found.numbers.limit) == (
                "threshold",
                point.threshold,
            )
            assert view.found.numbers.count == beyond.sum()
            assert (
                view.found.numbers.outlier_column_count == point.columns == beyond.any(axis=0).sum()
            )
            text = screen_text(pilot.app)
            assert f"< {point.threshold:g} > {point.columns} of 160 columns in 16 bits" in text
            assert f"{beyond.sum():,} of |x| >= {point.threshold:g}" in text
            assert f"At |x| >= {point.threshold:g}, " in panel_of(pilot).sentence
            assert (point.threshold < slider) == (key in ("greater_than_sign", "comma"))


async def test_detection_by_column(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        await pilot.press("M")
        await ready(pilot)
        absmax = np.abs(tensors()[PROJ].astype(np.float64)).max(axis=0)
        text = screen_text(pilot.app)
        assert "1 of 160 columns over 4 times the median" in text or "1 of 160 over 4× the" in text
        assert panel_of(pilot).sentence.startswith("Over 4 times the median, 1 of 160 columns ")
        assert f"{absmax[17] / np.median(absmax):.3g}×" in text
        ranked = [magnitude.column for magnitude in view.found.numbers.largest]
        assert ranked == list(np.argsort(-absmax, kind="stable")[:64])
        for _ in range(7):
            await pilot.press("full_stop")
        await ready(pilot)
        assert "no column over 64 times the median" in screen_text(pilot.app)
        assert "No column over 64 times" in panel_of(pilot).sentence
        await pilot.press("full_stop")
        assert panel_of(pilot).sentence == "The limit is 1.5 to 64 times the median."


async def test_what_was_injected_is_found_or_not(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        await type_outlier(pilot, "2 at 5,40")
        assert panel_of(pilot).sentence.endswith("; 6 sigma finds it.")
        assert any((o.row, o.column) == (5, 40) for o in view.found.numbers.top)
        view.detection = Detection("threshold", threshold=3.0)
        panel_of(pilot).look_again()
        await ready(pilot)
        assert panel_of(pilot).sentence.endswith("; |x| >= 3 does not find it.")
        await pilot.press("plus")
        await ready(pilot)
        assert panel_of(pilot).sentence.endswith("; |x| >= 3 finds it.")
        assert [(o.row, o.column, o.value) for o in view.found.numbers.top] == [(5, 40, 4.0)]


async def test_another_scheme_and_another_tensor(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        panel = panel_of(pilot)
        await pilot.press("X")  # nf4
        await ready(pilot)
        assert view.found.granularities is not None
        assert view.found.granularities.scheme == "nf4:block64"
        assert view.found.decomposition is not None
        assert view.found.decomposition.scheme == "int8:row"
        assert "LLM.int8() of int8:row" in screen_text(pilot.app)
        await type_outlier(pilot, "9 at 1,1")
        for name in ("odd.holes", "odd.zeros", "odd.scalar", "model.layers.0.norm.weight"):
            panel.body.side.list.select(name)
            await ready(pilot)
            assert panel.shown.inject is None  # it was of another tensor
            assert panel.phase is AskingPhase.READY
            assert panel.sentence
        panel.body.side.list.select("odd.empty")
        await ready(pilot)
        assert "This tensor is empty" in screen_text(pilot.app)
        panel.body.side.list.select(PROJ)
        await ready(pilot)
        assert "beyond 6 sigma, in 1 column" in screen_text(pilot.app)


async def test_an_engine_that_is_lost_and_started_again(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        panel = panel_of(pilot)
        panel.qtui.engine.kill()
        await until(pilot, lambda: panel.phase is AskingPhase.LOST)
        await settled(pilot)
        assert "r starts it again" in screen_text(pilot.app)
        await pilot.press("r")
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        await settled(pilot)
        assert view.found.numbers is not None
        assert "beyond 6 sigma" in screen_text(pilot.app)


@pytest.mark.parametrize(
    ("size", "color"),
    [((60, 16), "none"), ((80, 24), "256"), ((100, 30), "truecolor"), ((200, 50), "none")],
    ids=str,
)
async def test_every_depth_and_size_fits(
    running: Running, model: str, size: tuple[int, int], color: str
) -> None:
    async with running(size, model=model, start_panel="quantize", color=color) as pilot:
        view = await to_outliers(pilot)
        lines = screen_lines(pilot.app)
        assert all(len(line) == size[0] for line in lines)
        assert any("SQNR" in line for line in lines)
        assert view.bars.size.width > 20


async def test_ascii_draws_no_other_characters(running: Running, model: str) -> None:
    async with running((120, 40), model=model, start_panel="quantize", ascii=True) as pilot:
        await to_outliers(pilot)
        await type_outlier(pilot, "40 sigma at 50,90")
        for _ in range(3):
            assert screen_text(pilot.app).isascii()
            assert "?" not in screen_text(pilot.app).replace("? More", "")
            await pilot.press("m")
            await ready(pilot)


async def test_export_and_copy(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        view = await to_outliers(pilot)
        await type_outlier(pilot, "2 at 5,40")
        data, text = panel_of(pilot).export_data(), view.copy_text()
    assert data is not None
    part = data["outliers"]
    assert part["threshold"] == view.found.decomposition.points[view.found.chosen].threshold
    assert part["granularities"]["before"]
    assert part["outliers"]["top"][0]["sigmas"] > 6
    assert text is not None
    assert "outlier 2 injected at (5, 40)" in text
    assert "group64" in text
    assert np.isfinite(part["attribution"]["sqnr_db"])
