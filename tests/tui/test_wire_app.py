"""What keys of the real app send, as Textual paints it at 120x40 in 24-bit colour: few bytes, and
nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
from screens import Running, idle, idle_when, settled
from textual._compositor import CompositorUpdate
from textual.css.stylesheet import Stylesheet
from textual.widget import Widget

from qtui.tui.app import QtuiApp
from qtui.tui.wire.last_screen import LastScreen

#: Keys in their order, and the most bytes that the difference takes.
LIMITS = (
    ("right", 200),  # the bit under the cursor, and its name
    ("down", 5_000),
    ("question_mark", 15_000),
    ("escape", 13_000),
    ("ctrl+p", 16_000),
    ("escape", 14_000),
)


async def test_keys_of_the_app_take_few_bytes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, painted = LastScreen(120, 40, erases=True), 0

    def display(app: QtuiApp, screen: Any, update: object) -> None:
        nonlocal painted
        if isinstance(update, CompositorUpdate) and not app._batch_count:
            data = update.render_segments(app.console)
            painted += len(data.encode())
            assert last.feed(data + "\x1b[1;1H") == ""

    monkeypatch.setattr(QtuiApp, "_display", display)
    async with running() as pilot:
        sent = len(last.difference().encode())
        assert 5_000 < sent < 14_000  # the whole first screen
        for key, limit in LIMITS:
            await pilot.press(key)
            await settled(pilot)
            took = len(last.difference().encode())
            assert 20 < took < limit, key
            sent += took
    assert sent < painted / 4


@pytest.mark.parametrize(
    ("panel", "most"),
    [("formats", 12_000), pytest.param("quantize", 40_000, marks=pytest.mark.slow)],
)
async def test_zooming_sends_one_picture_in_its_last_size(
    running: Running, monkeypatch: pytest.MonkeyPatch, panel: str, most: int
) -> None:
    """Also what the engine makes for the new size is in what is held; later no more than a few
    cells change. No part is styled again for each class that changes."""
    last, sent = LastScreen(120, 40, erases=True), []
    apply, styled = Stylesheet.apply, 0

    def display(app: QtuiApp, screen: Any, update: object) -> None:
        if isinstance(update, CompositorUpdate) and not app._batch_count:
            last.feed(update.render_segments(app.console) + "\x1b[1;1H")

    def counted(sheet: Stylesheet, node: Any, **options: Any) -> None:
        nonlocal styled
        styled += isinstance(node, Widget)
        apply(sheet, node, **options)

    def send() -> None:
        sent.append(len(last.difference().encode()))

    monkeypatch.setattr(QtuiApp, "_display", display)
    async with running(start_panel=panel) as pilot:
        app = pilot.app
        await idle_when(pilot, lambda: not app.panel.busy)
        await pilot.press("enter")
        await settled(pilot)
        monkeypatch.setattr(app._driver, "hold", lambda seconds: None, raising=False)
        monkeypatch.setattr(app._driver, "go_on", send, raising=False)
        monkeypatch.setattr(Stylesheet, "apply", counted)
        for _ in ("maximise", "bring back"):
            last.difference()
            sent.clear()
            styled = 0
            await pilot.press("z")
            assert 0 < styled < 40
            await idle(pilot)
            assert len(sent) == 1
            assert 1_000 < sent[0] < most
            assert len(last.difference().encode()) < 500
