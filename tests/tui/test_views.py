"""The views of every panel that has several: by key in both directions, around the end, and by
click."""

from __future__ import annotations

from typing import Any, cast

import pytest
from screens import Running, settled

from qtui.screen.panel.asking import AskingPanel
from qtui.screen.panel.view import View, view_keys, views_help
from qtui.screen.plan.form import PlanForm
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, TextPicture
from qtui.screen.widgets.view_tabs import ViewTabs
from qtui.tui.panels.hardware.panel import HardwarePanel
from qtui.tui.panels.hardware.shown import HardwareShown

PANELS = ("quantize", "codebooks", "memory", "train", "numerics", "hardware")


@pytest.mark.parametrize("name", PANELS)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", PANELS)
async def test_what_a_click_was_on_may_have_gone_before_its_message_comes(
    running: Running, model: str, name: str
):
    """There are other data by then, or fewer columns."""
    async with running((120, 40), model=model, start_panel=name) as pilot:
        await settled(pilot)
        panel = cast(Any, pilot.app).panel
        for place in range(len(panel.views)):
            for picture in panel.query(TextPicture):
                # (The cells of the map in Memory are always the same.)
                for pick in (999,) if name == "memory" else (999, (999, 0), (0, 999)):
                    for twice in (False, True):
                        picture.post_message(TextPicture.Picked(pick, twice))
                await pilot.press("x", "]", "enter", "escape", "down", "left")
            for form in panel.query(PlanForm):
                form.post_message(PlanForm.FieldClicked(99, again=True))
            await settled(pilot)
            panel.show_view(panel.views[place])
        assert pilot.app._exception is None


class SaltView(View[HardwareShown]):
    """The view that CONTRIBUTING.md adds."""

    TITLE = "Salt"
    HELP = "**Salt**: how much of it each GPU holds.\n"

    def draw(self, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
        return [[Put(0, "a pinch", "label")]]

    def meaning(self, shown: HardwareShown) -> str:
        return "Salt is no bottleneck here: add batches."


async def test_a_view_is_a_class_and_its_name_in_the_panel(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = (*HardwarePanel.VIEWS, SaltView)
    monkeypatch.setattr(HardwarePanel, "VIEWS", views)
    assert view_keys("hardware", views)[0].tooltip.endswith("roofline, operations, salt")
    assert views_help(views).endswith(SaltView.HELP)
    async with running((120, 40), start_panel="hardware") as pilot:
        await settled(pilot)
        await pilot.press("V")
        await settled(pilot)
        panel = cast(Any, pilot.app).panel
        assert panel.query_one(ViewTabs).titles[-1] == "Salt"
        assert panel.body.picture.text.splitlines()[0] == "a pinch"
        assert panel.sentence == "Salt is no bottleneck here: add batches."
