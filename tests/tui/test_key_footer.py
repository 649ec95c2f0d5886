"""The footer says what each key does now: every key that it shows does something, wherever the
focus is, and where it is cut it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from screens import Running, idle, resized, screen_text, settled
from textual.pilot import Pilot
from textual.widget import Widget

from qtui.tui.key_footer import KeyFooter, KeyHint

#: What starts long work, whose keys the tests of its panel press; and another attempt, which may
#: end as the one before.
WORK = {
    "app.quit", "train.run", "train.step", "numerics.run", "hardware.measure", "quantize.capture",
    "quantize.evaluate", "memory.trace", "quantize.restart", "codebooks.restart", "memory.restart",
    "hardware.restart",
}  # fmt: skip
#: No panel has more.
MOST_PARTS = 6


def footer(pilot: Pilot[Any]) -> KeyFooter:
    return pilot.app.screen_stack[0].query_one(KeyFooter)


async def back(pilot: Pilot[Any], panel: Any, view: int, part: Widget | None) -> None:
    """Goes back to a panel, a view and a part of it, out of what a key opened."""
    while len(pilot.app.screen_stack) > 1:
        await pilot.press("escape")
        await pilot.pause()
    pilot.app.shell.unzoom()
    if pilot.app.panel is not panel:  # where an element was shown
        await pilot.press(str(panel.NUMBER))
        await idle(pilot)
    assert pilot.app.panel is panel
    for _ in range(2):
        if any(hint.id.endswith((".back", ".leave")) for hint in footer(pilot).hints):
            await pilot.press("escape")
            await pilot.pause()
    if hasattr(panel, "views") and panel.view is not panel.views[view]:
        panel.show_view(panel.views[view])
    pilot.app.screen.set_focus(part)
    await idle(pilot)


async def idle_keys(
    pilot: Pilot[Any], panel: Any, view: int, part: Widget | None, of_app: set[str]
) -> list[str]:
    """The hints of the footer whose keys change nothing that can be seen; those of the app only
    once for all parts of a view, `of_app`."""
    await back(pilot, panel, view, part)
    found, tried = [], set()
    while True:
        hints = [*footer(pilot).hints, *footer(pilot).always]
        hint = next((each for each in hints if each.id not in WORK | tried | of_app), None)
        if hint is None:
            return found
        (of_app if hint.id.startswith("app.") else tried).add(hint.id)
        if not await acts(pilot, hint):
            found.append(f"{hint.display} {hint.description}")
        await back(pilot, panel, view, part)


async def acts(pilot: Pilot[Any], hint: KeyHint) -> bool:
    app, panel = pilot.app, pilot.app.panel
    pilot.app.clear_notifications()
    await settled(pilot)
    # At one end of a row of values a key has nothing to do in that direction, but in the other.
    for key in (hint.key, *OTHER_WAY.get(hint.key, ())):
        before = seen(app)
        await pilot.press(key)
        await idle(pilot)
        if seen(app) != before or app.panel is not panel:
            return True
    return False


def seen(app: Any) -> tuple[object, ...]:
    """The picture, as a cursor may be a colour; and the toasts, which take a while to it."""
    told = [toast.message for toast in app._notifications]
    return app.screen._compositor.render_strips(), app.screen, app.focused, told


#: A key -> the one for the other direction.
OTHER_WAY = {
    "left": ("right",), "up": ("down",), "plus": ("minus",), "right_square_bracket": (
        "left_square_bracket",), "full_stop": ("comma",), "greater_than_sign": ("less_than_sign",),
}  # fmt: skip


PANELS = ("formats", "quantize", "codebooks", "memory", "train", "numerics", "hardware")


@pytest.mark.slow
@pytest.mark.parametrize("panel", PANELS)
async def test_every_key_of_the_footer_does_something(
    running: Running, model: str, panel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # an export
    async with running((120, 40), model=model, start_panel=panel) as pilot:
        await idle(pilot)
        wrong = {}
        at = pilot.app.panel
        views = getattr(at, "views", (None,))
        for number, view in enumerate(views):
            await back(pilot, at, number, pilot.app.focused)
            parts: list[Widget | None] = []
            for _ in range(MOST_PARTS):
                if pilot.app.focused in parts:
                    break
                parts.append(pilot.app.focused)
                await pilot.press("tab")
                await settled(pilot)
            assert None not in parts, view
            of_app: set[str] = set()
            for part in parts:
                if found := await idle_keys(pilot, at, number, part, of_app):
                    wrong[f"{getattr(view, 'TITLE', '')} {part!r}"] = found
        assert not wrong


async def test_a_footer_that_is_cut_says_so(running: Running) -> None:
    async with running() as pilot:
        shown = footer(pilot)
        for width in (60, 80, 120, 200, 300):
            await resized(pilot, (width, 40))
            placed = [hint for _, hint in shown._placed()]
            names = [hint.description for hint in placed if hint.id == KeyFooter.HELP]
            cut = len(placed) < len(shown.hints) + len(shown.always)
            assert names == [KeyFooter.MORE if cut else "Help"]
            assert f"? {names[0]}" in screen_text(pilot.app).splitlines()[-1]
        assert not cut
