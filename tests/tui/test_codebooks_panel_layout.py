"""The Codebooks panel at every size and colour depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from screens import (
    Running,
    goldens,
    idle,
    idle_when,
    resized,
    screen_lines,
    screen_text,
    settled,
)
from textual.pilot import Pilot

from qtui.screen.panel.asking import AskingPhase
from qtui.tui.panels.codebooks.panel import CodebooksPanel

VIEWS = [view.TITLE for view in CodebooksPanel.VIEWS]
SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def model(model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """By a short relative name, which the header line shows."""
    monkeypatch.chdir(Path(model).parent)
    return Path(model).name


async def ready(pilot: Pilot[None]) -> CodebooksPanel:
    app = cast(Any, pilot.app)
    await idle_when(pilot, lambda: app.panel.phase is AskingPhase.READY)
    return app.panel


async def show(pilot: Pilot[None], view: str) -> CodebooksPanel:
    panel = await ready(pilot)
    for _ in range(VIEWS.index(view)):
        await pilot.press("v")
    if view == "Construction":
        await pilot.press(*["right"] * 4)
    await settled(pilot)
    assert view == panel.view.TITLE
    return panel


async def test_golden(running: Running, model: str) -> None:
    with goldens() as check:
        async with running(SIZES[0], model=model, start_panel="codebooks", color="16") as pilot:
            panel = await ready(pilot)
            for view in VIEWS:
                assert view == panel.view.TITLE
                if view == "Construction":
                    await pilot.press(*["right"] * 4)
                for size in SIZES:
                    await resized(pilot, size)
                    name = f"codebooks_{view.lower()}_{size[0]}x{size[1]}"
                    check(name, screen_text(pilot.app))
                await pilot.press("v")


@pytest.mark.parametrize(
    ("size", "color"),
    [((60, 16), "none"), ((80, 24), "256"), ((100, 30), "none"), ((160, 45), "truecolor")],
    ids=str,
)
async def test_every_depth_and_size_fits(
    running: Running, model: str, size: tuple[int, int], color: str
) -> None:
    async with running(size, model=model, start_panel="codebooks", color=color) as pilot:
        panel = await ready(pilot)
        for view in VIEWS:
            lines = screen_lines(pilot.app)
            assert all(len(line) == size[0] for line in lines)
            assert view == panel.view.TITLE
            assert panel.sentence
            assert not any("Traceback" in line for line in lines)
            for key in ("right", "down", "left", "up", "z", "z"):
                await pilot.press(key)
            await pilot.press("v")
            await settled(pilot)


async def test_ascii_is_ascii(running: Running, model: str) -> None:
    async with running(model=model, start_panel="codebooks", color="none", ascii=True) as pilot:
        await ready(pilot)
        for _ in VIEWS:
            await pilot.press("right", "v")
            await settled(pilot)
            assert screen_text(pilot.app).isascii()


@pytest.mark.parametrize("theme", ["qtui-light", "qtui-contrast"])
async def test_themes(running: Running, model: str, theme: str) -> None:
    async with running(model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        before = screen_text(pilot.app)
        pilot.app.theme = theme
        await settled(pilot)
        assert screen_text(pilot.app) == before
        picture = panel.body.picture
        assert picture.base_style.bgcolor == picture.rich_style.bgcolor


async def test_nothing_is_told_by_colour_alone(running: Running, model: str) -> None:
    """The chosen scheme has a pointer, the code a mark, the best a word, and unequal bits a
    number."""
    async with running((80, 24), model=model, start_panel="codebooks", color="none") as pilot:
        await ready(pilot)
        text = screen_text(pilot.app)
        assert "▸nf4:block64" in text
        assert "▲" in text
        assert " best" in text
        assert "equal" in text
        assert "+0." in text


async def test_a_narrow_screen_scrolls_to_the_chosen_scheme(running: Running, model: str) -> None:
    async with running((80, 24), model=model, start_panel="codebooks") as pilot:
        await ready(pilot)
        names = screen_lines(pilot.app)[4]
        assert "nf4:block64" in names
        assert "nvfp4" not in names
        await pilot.press(*["down"] * 5)
        await settled(pilot)
        names = screen_lines(pilot.app)[4]
        assert "▸nvfp4" in names
        assert "nf4:block64" not in names
        assert "+2 more" in names


async def test_a_narrow_screen_lists_the_tensors_in_place_of_the_picture(
    running: Running, model: str
) -> None:
    async with running((80, 24), model=model, start_panel="codebooks") as pilot:
        panel = await ready(pilot)
        await pilot.press("slash", "tab")
        await settled(pilot)
        assert panel.body.side.list.has_focus
        assert "entropy" not in screen_text(pilot.app)
        assert "odd.zeros" in screen_text(pilot.app)
        await pilot.press("escape")
        await settled(pilot)
        assert "entropy" in screen_text(pilot.app)
        await pilot.press("slash", "tab", "down", "enter")
        await idle(pilot)
        assert panel.phase is not AskingPhase.WORKING
        assert panel.body.picture.has_focus
        assert panel.shown.entry is not None
        assert panel.shown.entry.name == "model.layers.0.norm.weight"
