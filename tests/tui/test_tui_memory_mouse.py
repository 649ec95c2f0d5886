"""Lines and cells of the Memory panel, chosen by the mouse."""

from __future__ import annotations

import pytest
from memory_estimator import HandMade
from screens import Running, screen_lines, settled, until
from test_tui_memory_layout import estimator, ready, show  # noqa: F401 (a fixture)
from textual.pilot import Pilot

from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES


async def click(pilot: Pilot[None], text: str, *, times: int = 1) -> None:
    """Where a text stands in the picture."""
    picture = pilot.app.panel.body.picture  # type: ignore[attr-defined]
    region = picture.content_region
    for y, line in enumerate(screen_lines(pilot.app)[region.y : region.bottom]):
        x = line[region.x :].find(text)
        if x >= 0:
            assert await pilot.click(picture, offset=(x, y), times=times)
            await settled(pilot)
            return
    raise AssertionError(f"{text} is nowhere")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_a_click_chooses_a_saving_and_two_make_it(
    running: Running, size: tuple[int, int]
) -> None:
    async with running(size, start_panel="memory") as pilot:
        panel = await show(pilot, "Savings")
        before = panel.shown.plan
        await click(pilot, "--lora-rank 8")
        assert panel.shown.around.advice[panel.shown.line].change == "--lora-rank 8"
        assert panel.shown.plan == before
        assert panel.body.picture.has_focus
        await click(pilot, "--lora-rank 8", times=2)
        await ready(pilot)
        assert panel.shown.plan.lora_rank == 8


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_two_clicks_take_the_gpu_that_the_first_was_on(
    running: Running,
    size: tuple[int, int],
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(size, start_panel="memory") as pilot:
        panel = await show(pilot, "GPUs")
        fit = panel.shown.around.fits[-1]
        await click(pilot, fit.gpu)
        assert panel.shown.line == len(panel.shown.around.fits) - 1
        await click(pilot, fit.gpu, times=2)
        await ready(pilot)
        assert panel.shown.gpu.label == fit.gpu


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=str)
async def test_a_click_chooses_a_cell_and_two_take_its_batch_and_sequence(
    running: Running, size: tuple[int, int]
) -> None:
    async with running(size, start_panel="memory") as pilot:
        panel = await show(pilot, "Map")
        picture = panel.body.picture
        cells = {
            put.pick: (put.column, y)
            for y, line in enumerate(picture._lines)
            for put in line
            if put.pick is not None
        }
        assert len(cells) >= len(MAP_BATCHES) * 5
        row, column = target = (2, 1)
        for left in (0, 1):  # on the figure, and in the room before it
            panel.shown.cell = (0, 0)
            x, y = cells[target]
            assert await pilot.click(picture, offset=(x - left, y))
            await settled(pilot)
            assert panel.shown.cell == target
        assert await pilot.click(picture, offset=cells[target], times=2)
        await until(pilot, lambda: panel.shown.plan.batch == MAP_BATCHES[row])
        assert panel.shown.plan.sequence == MAP_SEQUENCES[column]


async def test_two_clicks_open_a_case(running: Running) -> None:
    async with running((80, 24), start_panel="memory") as pilot:
        panel = await show(pilot, "Cases")
        case = panel.shown.cases[0]
        await click(pilot, case.title[:20])
        assert (panel.shown.line, panel.shown.case) == (0, "")
        await click(pilot, case.title[:20], times=2)
        await until(pilot, lambda: panel.shown.case == case.key)
        assert panel.view.TITLE == "Step"


async def test_a_click_beside_lines_does_nothing(running: Running) -> None:
    async with running((120, 40), start_panel="memory") as pilot:
        panel = await show(pilot, "Savings")
        before = (panel.shown.line, panel.shown.plan)
        assert await pilot.click(panel.body.picture, offset=(4, 0), times=2)  # the heading
        assert await pilot.click(
            panel.body.picture, offset=(4, panel.body.picture.size.height - 1), times=2
        )
        await settled(pilot)
        assert (panel.shown.line, panel.shown.plan) == before
