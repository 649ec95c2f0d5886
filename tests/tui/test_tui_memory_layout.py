"""The Memory panel at every size and colour depth, over a hand-made step."""

from __future__ import annotations

from typing import Any, cast

import pytest
from memory_estimator import HandMade
from screens import Running, goldens, resized, screen_lines, screen_text, settled, until
from textual.pilot import Pilot

from qtui.screen.panel.asking import AskingPhase
from qtui.tui.app import QtuiApp
from qtui.tui.panels.memory.panel import MemoryPanel

VIEWS = [view.TITLE for view in MemoryPanel.VIEWS]
SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def estimator(monkeypatch: pytest.MonkeyPatch) -> HandMade:
    made = HandMade()
    monkeypatch.setattr(QtuiApp, "estimator", made)
    return made


async def ready(pilot: Pilot[None]) -> MemoryPanel:
    panel = cast(Any, pilot.app).panel
    await until(pilot, lambda: panel.phase is AskingPhase.READY and panel.shown.around is not None)
    await settled(pilot)
    return panel


async def show(pilot: Pilot[None], view: str) -> MemoryPanel:
    """The view, after batch 1 became 2, with a GPU."""
    panel = await ready(pilot)
    panel.choose_gpu(panel._gpu_of("4090"))
    await ready(pilot)
    await pilot.press("right")
    await ready(pilot)
    for _ in range(VIEWS.index(view)):
        await pilot.press("v")
    if view == "Cases":
        await pilot.press("down", "down")
    await settled(pilot)
    assert view == panel.view.TITLE
    return panel


async def test_golden(running: Running) -> None:
    with goldens() as check:
        async with running(SIZES[0], start_panel="memory", color="16") as pilot:
            panel = await show(pilot, VIEWS[0])
            for view in VIEWS:
                assert view == panel.view.TITLE
                if view == "Cases":
                    await pilot.press("down", "down")
                for size in SIZES:
                    await resized(pilot, size)
                    check(f"memory_{view.lower()}_{size[0]}x{size[1]}", screen_text(pilot.app))
                await pilot.press("v")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "color"),
    [((60, 16), "none"), ((80, 24), "256"), ((100, 30), "none"), ((160, 45), "truecolor")],
    ids=str,
)
async def test_every_depth_and_size_fits(
    running: Running, size: tuple[int, int], color: str
) -> None:
    async with running(size, start_panel="memory", color=color) as pilot:
        panel = await ready(pilot)
        for view in VIEWS:
            lines = screen_lines(pilot.app)
            assert all(len(line) == size[0] for line in lines)
            assert view == panel.view.TITLE
            assert panel.sentence
            for key in ("right", "down", "left", "up", "tab", "z", "z"):
                await pilot.press(key)
            await pilot.press("v")
            await settled(pilot)


@pytest.mark.slow
async def test_ascii_is_ascii(running: Running) -> None:
    async with running(start_panel="memory", color="none", ascii=True) as pilot:
        await ready(pilot)
        for _ in VIEWS:
            await pilot.press("right", "v")
            await settled(pilot)
            assert screen_text(pilot.app).isascii()


@pytest.mark.parametrize("theme", ["qtui-light", "qtui-contrast"])
async def test_themes(running: Running, theme: str) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        before = screen_text(pilot.app)
        pilot.app.theme = theme
        await settled(pilot)
        assert screen_text(pilot.app) == before
        assert panel.body.curve.base_style.bgcolor == panel.body.curve.rich_style.bgcolor


async def test_parts_are_told_by_letters_too(running: Running) -> None:
    """In colour a letter stands in each part; without, parts are drawn as their letters."""
    async with running(start_panel="memory", color="truecolor") as pilot:
        panel = await ready(pilot)
        rows = [line[45:] for line in screen_lines(pilot.app)[6:24]]
        assert any("W" in row for row in rows)
        assert any("A" in row for row in rows)
        assert "WWWW" not in screen_text(pilot.app)
        assert "WWWWWWWWWWWW" in panel.body.curve.text
        assert "WWWW" not in screen_text(pilot.app)  # a copy leaves the screen alone
    async with running(start_panel="memory", color="none") as pilot:
        await ready(pilot)
        assert "WWWWWWWWWWWW" in screen_text(pilot.app)


async def test_the_curve_before_is_dotted(running: Running) -> None:
    async with running(start_panel="memory", color="none") as pilot:
        panel = await ready(pilot)
        assert "·" not in panel.body.curve.text
        await pilot.press("right", "right")
        await ready(pilot)
        assert panel.body.curve.text.count("·") > 20


async def test_a_low_screen_scrolls_the_form(running: Running) -> None:
    async with running((80, 24), start_panel="memory") as pilot:
        await ready(pilot)
        assert "segments" not in screen_text(pilot.app)
        await pilot.press("up", "up")
        await settled(pilot)
        assert "▸segments" in screen_text(pilot.app)
