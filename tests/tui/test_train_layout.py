"""The Train panel at every size and colour depth, over hand-made runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import train_runs
from screens import Running, goldens, resized, screen_lines, screen_text, settled, until
from test_train_panel import estimator, ready, replay  # noqa: F401 (a fixture)

from qtui.tui.panels.train.panel import TrainPanel
from qtui.tui.panels.train.views.gap_view import GapView
from qtui.tui.panels.train.views.run_view import RunView
from qtui_core.live.state import RunEvent

SIZES = [(80, 24), (120, 40), (200, 50)]
RUNS: dict[str, tuple[Callable[[], Sequence[RunEvent]], float]] = {
    "running": (train_runs.whole, 5.7),
    "done": (train_runs.whole, 1e9),
    "cpu": (lambda: train_runs.whole(cpu=True), 1e9),
    "oom": (train_runs.out_of_memory, 1e9),
}


def of_size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


async def test_golden_before_a_run(running: Running) -> None:
    with goldens() as check:
        async with running(SIZES[0], start_panel="train", color="16") as pilot:
            await ready(pilot)
            for size in SIZES:
                await resized(pilot, size)
                check(f"train_before_{of_size(size)}", screen_text(pilot.app))


@pytest.mark.parametrize("run", list(RUNS))
async def test_golden_of_runs(running: Running, tmp_path: Path, run: str) -> None:
    lines, seconds = RUNS[run]
    path = train_runs.write(tmp_path / "run.jsonl", lines())
    with goldens() as check:
        async with running(SIZES[0], recording=path, color="16") as pilot:
            for size in SIZES:
                await resized(pilot, size)
                await replay(pilot, seconds)
                check(f"train_{run}_{of_size(size)}", screen_text(pilot.app))


async def test_golden_of_views(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    with goldens() as check:
        async with running(SIZES[0], recording=path, color="16") as pilot:
            for size in SIZES[:2]:
                for view in TrainPanel.VIEWS[1:]:
                    await resized(pilot, size)
                    panel = await replay(pilot)
                    panel.show_view(panel.view_of(view))
                    await settled(pilot)
                    name = f"train_{view.TITLE.lower()}_{of_size(size)}"
                    check(name, screen_text(pilot.app))
                    panel.show_view(panel.view_of(RunView))


async def test_the_title_says_as_much_as_its_new_width_holds(
    running: Running, tmp_path: Path
) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(SIZES[1], recording=path) as pilot:
        panel = await replay(pilot, 5.7)
        title = panel.body.title_line
        await until(pilot, lambda: "replay" in title.note)
        await resized(pilot, SIZES[0])
        await until(pilot, lambda: "replay" not in title.note)
        panel.show_view(panel.view_of(GapView))  # which takes the room of the form
        await until(pilot, lambda: "replay" in title.note)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "color", "sizes"),
    [
        ("running", "none", ((60, 16), (160, 45))),
        ("oom", "256", ((80, 24), (60, 16))),
        ("cpu", "truecolor", ((100, 30), (80, 24))),
    ],
    ids=str,
)
async def test_every_depth_and_size_fits(
    running: Running, tmp_path: Path, run: str, color: str, sizes: tuple[tuple[int, int], ...]
) -> None:
    lines, seconds = RUNS[run]
    path = train_runs.write(tmp_path / "run.jsonl", lines())
    async with running((60, 16), recording=path, color=color) as pilot:
        panel = await replay(pilot, seconds)
        for size in sizes:
            await resized(pilot, size)
            for view in panel.views:
                assert panel.view is view
                assert all(len(line) == size[0] for line in screen_lines(pilot.app))
                assert panel.sentence
                for key in ("F", "down", "up", "tab", "z", "z"):
                    await pilot.press(key)
                await pilot.press("v")
                await settled(pilot)


@pytest.mark.slow
async def test_ascii_is_ascii(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(recording=path, color="none", ascii=True) as pilot:
        panel = await replay(pilot, 5.7)
        for _ in panel.views:
            assert screen_text(pilot.app).isascii()
            assert "?" not in "".join(line for line in screen_lines(pilot.app)[:-1])
            await pilot.press("v")
            await settled(pilot)
        assert "***" in panel.body.curve.text


@pytest.mark.parametrize("theme", ["qtui-light", "qtui-contrast"])
async def test_themes(running: Running, tmp_path: Path, theme: str) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(recording=path) as pilot:
        panel = await replay(pilot, 5.7)
        before = screen_text(pilot.app)
        grounds = [panel.body.curve._ground]
        pilot.app.theme = theme
        await settled(pilot)
        assert screen_text(pilot.app) == before
        assert panel.body.curve._ground not in grounds


async def test_lines_are_told_apart_without_colours(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(recording=path, color="none") as pilot:
        panel = await replay(pilot, 5.7)
        text = panel.body.curve.text
        legend = text.splitlines()[0]
        assert all(name in legend for name in ("allocated", "reserved", "device"))
        samples = [legend[legend.index(n) - 3] for n in ("allocated", "reserved", "device")]
        assert len(set(samples)) == 3
        assert "wwww" in text
