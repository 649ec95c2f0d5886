"""The bytes of keys of the real app, as Textual paints them at 120x40 in 24-bit colour."""

from __future__ import annotations

from typing import Any

import pytest
from screens import Running, settled
from textual._compositor import CompositorUpdate

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
