"""The Quantize panel at every size and colour depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from screens import Running, goldens, idle, resized, screen_lines, screen_text, settled, until
from textual.pilot import Pilot

from qtui.screen.panel.asking import AskingPhase
from qtui.tui.panels.quantize.panel import QuantizePanel

SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def model(model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """By a short relative name, which the header line shows."""
    monkeypatch.chdir(Path(model).parent)
    return Path(model).name


async def ready(pilot: Pilot[None]) -> QuantizePanel:
    await idle(pilot)
    panel = cast(Any, pilot.app).panel
    await until(
        pilot,
        lambda: (
            panel.phase is AskingPhase.READY
            and None not in panel.shown.errors
            and panel.shown.element is not None
        ),
    )
    await settled(pilot)
    return panel


async def test_golden(running: Running, model: str) -> None:
    with goldens() as check:
        async with running(SIZES[-1], model=model, start_panel="quantize", color="16") as pilot:
            for size in reversed(SIZES):  # the list has the focus as long as there is room for it
                await resized(pilot, size)
                await ready(pilot)
                await pilot.press("asterisk")  # the largest error, where a first map begins
                await ready(pilot)
                check(f"quantize_{size[0]}x{size[1]}", screen_text(pilot.app))


@pytest.mark.parametrize(
    ("sizes", "color"),
    [
        (((60, 16), (100, 30)), "none"), (((60, 16), (100, 30)), "truecolor"),
        (((80, 24), (160, 45)), "16"), (((80, 24), (160, 45)), "256"),
    ],
    ids=str,
)  # fmt: skip
async def test_every_depth_and_size_fits(
    running: Running, model: str, sizes: tuple[tuple[int, int], ...], color: str
) -> None:
    keys = ("down", "left", "right", "up", *"LHJK", "asterisk", "m", "M", "t", "escape")
    async with running(model=model, start_panel="quantize", color=color) as pilot:
        for size in sizes:
            await resized(pilot, size)
            panel = await ready(pilot)
            lines = screen_lines(pilot.app)
            assert all(len(line) == size[0] for line in lines)
            text = "\n".join(lines)
            assert "|error|, max" in text
            assert "SQNR dB" in text
            assert "values, log count" in text
            glyphs = "▀" if color in ("truecolor", "256") else "░▒▓█"
            assert sum(map(text.count, glyphs)) > 10
            panel.body.heatmap.focus()
            await pilot.press(*keys)
            await settled(pilot)


async def test_ascii_is_ascii(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize", color="none", ascii=True) as pilot:
        panel = await ready(pilot)
        assert screen_text(pilot.app).isascii()
        panel.body.side.list.focus()
        await pilot.press("down")
        await idle(pilot)
        assert screen_text(pilot.app).isascii()


@pytest.mark.parametrize("theme", ["qtui-light", "qtui-contrast"])
async def test_themes(running: Running, model: str, theme: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        before = screen_text(pilot.app)
        pilot.app.theme = theme
        await settled(pilot)
        assert screen_text(pilot.app) == before
        background = panel.body.heatmap.rich_style.bgcolor
        assert panel.body.heatmap.base_style.bgcolor == background


async def test_the_other_scheme_is_whole_where_both_share_a_line(
    running: Running, model: str
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        for size in ((80, 24), (90, 30), (100, 30), (114, 30)):
            await resized(pilot, size)
            await ready(pilot)
            assert "int4" in screen_lines(pilot.app)[2]
            assert "B nf4:block64" in screen_lines(pilot.app)[2]


async def test_a_narrow_screen_lists_the_tensors_in_place_of_the_numbers(
    running: Running, model: str
) -> None:
    async with running((80, 24), model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        assert panel.body.heatmap.has_focus
        assert "bits/param" in screen_text(pilot.app)
        await pilot.press("slash", "tab")
        await settled(pilot)
        assert panel.body.side.list.has_focus
        text = screen_text(pilot.app)
        assert "bits/param" not in text
        assert "model.embed_tokens" in text
        await pilot.press("down", "enter")
        await idle(pilot)
        await ready(pilot)
        assert panel.body.heatmap.has_focus
        assert "bits/param" in screen_text(pilot.app)
        assert panel.shown.entry is not None
        assert panel.shown.entry.name == "model.layers.0.norm.weight"
        await pilot.press("slash", *"zeros")
        await settled(pilot)
        assert "odd.zeros" in screen_text(pilot.app)
        await pilot.press("escape", "escape")
        await settled(pilot)
        assert "bits/param" in screen_text(pilot.app)


async def test_the_cursor_is_marked_on_both_axes(running: Running, model: str) -> None:
    """Not by colour alone: a pointer at the row and a mark below the column."""
    async with running(model=model, start_panel="quantize", color="none") as pilot:
        panel = await ready(pilot)
        region = panel.body.heatmap.region
        lines = [line[region.x : region.right] for line in screen_lines(pilot.app)]
        picture = lines[region.y : region.bottom]
        assert sum("▸" in line for line in picture) >= 1
        assert sum("▲" in line for line in picture) == 1


async def test_outlier_columns_are_marked(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        region = panel.body.heatmap.region
        lines = [line[region.x : region.right] for line in screen_lines(pilot.app)]
        marks = next(line for line in lines[region.y : region.bottom] if "▲" in line)
        heatmap = panel.body.heatmap
        assert heatmap.marked_columns == (17,)
        assert heatmap.grid is not None
        column = 17 * heatmap.grid.grid_columns // heatmap.grid.columns
        if column != heatmap.cursor[1]:
            assert marks.count("◆") == 1
        assert "beyond 6 sigma" in screen_text(pilot.app)


async def test_the_zoomed_picture_has_more_cells(running: Running, model: str) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel = await ready(pilot)
        before = panel.shown.map
        assert before is not None
        await pilot.press("z")
        await until(pilot, lambda: panel.shown.map is not before)
        assert panel.shown.map is not None
        assert panel.shown.map.grid.grid_columns > before.grid.grid_columns
        await pilot.press("z")
        await settled(pilot)
