"""Views of every panel that has some: by key in both directions, around the end, and by click."""

from __future__ import annotations

from typing import Any, cast

import pytest
from quantize_model import write_model
from screens import Running, settled

from qtui.screen.panel.asking import AskingPanel
from qtui.screen.widgets.view_tabs import ViewTabs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("views"))


@pytest.mark.parametrize("name", ["quantize", "codebooks", "memory", "train", "hardware"])
async def test_keys_and_clicks_go_through_the_views(running: Running, model: str, name: str):
    async with running((120, 40), model=model, start_panel=name) as pilot:
        await settled(pilot)
        panel = cast(Any, pilot.app).panel
        assert isinstance(panel, AskingPanel)
        tabs = panel.query_one(ViewTabs)
        count = len(tabs.titles)
        assert (count > 2, tabs.active) == (True, 0)
        await pilot.press("V")
        assert tabs.active == count - 1
        await pilot.press("v", "v")
        assert tabs.active == 1
        start = sum(len(title) + 3 for title in tabs.titles[:2]) + 1
        assert await pilot.click(tabs, offset=(tabs.styles.padding.left + start, 0))
        await settled(pilot)
        assert tabs.active == 2
