"""What the tests of the terminal app share.

Goldens are the screen as plain text, one file a screen in golden/. `UPDATE_GOLDEN=1 pytest
tests/tui` writes them anew; read the diff before it is committed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual.app import App
from textual.pilot import Pilot

from qtui.tui.app import QtuiApp
from qtui.tui.config import Settings

GOLDEN = Path(__file__).parent / "golden"

#: Seconds after which what should come has not come: far more than any of it takes.
PATIENCE = 120.0
#: Rounds of the loop in which every chain of messages has come to its end.
ROUNDS = 100

#: Files whose every test waits for the real engine in a process of its own, or that draw every
#: panel at every size and depth.
SLOW = (
    "test_activations_view",
    "test_codebooks_panel_layout",
    "test_codebooks_panel_work",
    "test_outliers_view",
    "test_quantize_maps_view",
    "test_quantize_one_subject",
    "test_quantize_panel_layout",
    "test_quantize_panel_recovery",
    "test_quantize_panel_states",
    "test_quantize_panel_work",
    "test_shell_layout",
    "test_shell_pty",
    "test_train_layout",
    "test_tui_memory_layout",
    "test_tui_memory_mouse",
)

Running = Callable[..., AbstractAsyncContextManager[Pilot[None]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks those tests slow."""
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


def screen_lines(app: App[Any]) -> list[str]:
    """The cells of the screen as text. The one place that asks Textual's compositor."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def screen_text(app: App[Any]) -> str:
    """The screen without trailing blanks, ending in a newline."""
    return "\n".join(line.rstrip() for line in screen_lines(app)).rstrip() + "\n"


def check_golden(name: str, text: str) -> None:
    """Compares with golden/NAME.txt, or writes it where UPDATE_GOLDEN is set."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden {path.name}: run with UPDATE_GOLDEN=1"
    assert text == path.read_text(encoding="utf-8")


@contextmanager
def goldens() -> Iterator[Callable[[str, str], None]]:
    """`check_golden` for many screens of one app: what differs is told of all, at the end."""
    wrong = []

    def check(name: str, text: str) -> None:
        try:
            check_golden(name, text)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")

    yield check
    assert not wrong, "\n\n".join(wrong)


async def resized(pilot: Pilot[Any], size: tuple[int, int]) -> None:
    """The terminal of another size, once all is drawn in it."""
    await pilot.resize_terminal(*size)
    await idle(pilot)


async def drained(*_: float) -> None:
    """Lets everything go on that does not wait for a clock or for another process.

    A message that is handled posts the next: each is one round of the loop, or two.
    """
    for _round in range(ROUNDS):
        await asyncio.sleep(0)


async def until(pilot: Pilot[Any], holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Waits for something to become true, and fails if it does not."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)
        await drained()
        pilot.app.screen._on_timer_update()


async def settled(pilot: Pilot[Any]) -> None:
    """Waits for the screen to stop changing."""
    await pilot.pause()
    before = ""
    while before != (before := screen_text(pilot.app)):
        await pilot.pause(0.03)


async def idle(pilot: Pilot[Any]) -> None:
    """Waits for all that the keys pressed so far ask for: nothing works, the screen is still."""
    await pilot.pause()
    await until(pilot, lambda: all(worker.is_finished for worker in pilot.app.workers))
    await settled(pilot)


@pytest.fixture(autouse=True)
def no_clock_between_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits after each key until the process has used no processor for 20 ms:
    40 ms a key, and no proof on a busy machine, where a process may get none and has work."""
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", drained)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """An app under a pilot: `async with running(size=(80, 24), theme="qtui-light") as pilot`.

    Nothing of the user's machine is read or written: no configuration, the clipboard's file, the
    log and exports in a temporary folder, no tmux.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("TMUX", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    @asynccontextmanager
    async def run(
        size: tuple[int, int] = (120, 40),
        *,
        config: Settings | None = None,
        color: str = "truecolor",
        **options: Any,
    ) -> AsyncIterator[Pilot[None]]:
        settings = replace(config or Settings(), export_folder=str(tmp_path))
        options = {"look_ahead": False, **options}  # an engine for each test takes its time
        app = QtuiApp(config=settings, color=color, **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: app.panel is not None)
            await settled(pilot)
            yield pilot

    return run
