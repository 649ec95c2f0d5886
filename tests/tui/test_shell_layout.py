"""The app at many sizes, colour depths and themes: it is drawn, and nothing crashes."""

from __future__ import annotations

import re
from itertools import product

import pytest
from screens import (
    Running,
    check_golden,
    goldens,
    idle,
    resized,
    screen_lines,
    screen_text,
    settled,
    until,
)
from textual.pilot import Pilot

from qtui.screen.depth import Depth, depth_of
from qtui.tui.ascii_only import to_ascii
from qtui.tui.config import Settings
from qtui_core.errors import UsageError

SENTENCE = (
    "No format here holds 0.1 exactly: FP16 is off by 0.024%, E4M3 by 1.6%, E3M2 by 25%; E3M0 "
    "and E2M1 turn it into 0, so multiply by 4 or more before casting to E3M0."
)
SIZES = [(80, 24), (120, 40), (200, 50), (60, 16), (40, 12)]


async def still(pilot: Pilot[None]) -> None:
    """Holds fixed what the layout does not depend on: this machine's device, the words of the
    summary."""
    pilot.app.set_device("no GPU")
    pilot.app.panel.sentence = SENTENCE
    await settled(pilot)


async def test_every_size_draws_every_line_in_full(running: Running) -> None:
    async with running(size=SIZES[0]) as pilot:
        for size in SIZES:
            await resized(pilot, size)
            lines = screen_lines(pilot.app)
            assert len(lines) == size[1]
            assert {len(line) for line in lines} == {size[0]}
            await pilot.press("question_mark", "escape", "4", "1", "i", "1", "enter", "space", "v")
            await settled(pilot)
            assert len(screen_lines(pilot.app)) == size[1]


async def test_formats_screen(running: Running) -> None:
    with goldens() as check:
        async with running(size=SIZES[0]) as pilot:
            for size in SIZES[:4]:
                await resized(pilot, size)
                await still(pilot)
                check(f"formats_{size[0]}x{size[1]}", screen_text(pilot.app))


async def test_ranges_screen(running: Running) -> None:
    async with running(size=(80, 24)) as pilot:
        await pilot.press("v")
        await still(pilot)
        check_golden("formats_ranges_80x24", screen_text(pilot.app))


async def test_pinned_screen(running: Running) -> None:
    with goldens() as check:
        async with running(size=(80, 24)) as pilot:
            await pilot.press("P", "down")
            for size in ((80, 24), (120, 40)):
                await resized(pilot, size)
                pilot.app.set_device("no GPU")
                await settled(pilot)
                check(f"formats_pinned_{size[0]}x{size[1]}", screen_text(pilot.app))


async def test_too_small_is_one_message(running: Running) -> None:
    async with running(size=(59, 16)) as pilot:
        for size in ((59, 16), (60, 15), (40, 12), (10, 3)):
            await resized(pilot, size)
            text = screen_text(pilot.app)
            assert "60x16" in text or size[0] < 20
            assert "E4M3" not in text


async def test_growing_out_of_too_small_brings_the_panel_back(running: Running) -> None:
    async with running(size=(40, 12)) as pilot:
        await pilot.resize_terminal(100, 30)
        await settled(pilot)
        assert "E4M3" in screen_text(pilot.app)


async def test_another_size_takes_the_keys_from_no_panel(running: Running) -> None:
    def focus() -> str:
        app = pilot.app
        focused = app.focused
        assert focused is not None
        assert app.panel in focused.ancestors
        assert all(node.display for node in focused.ancestors_with_self)
        return type(focused).__name__

    async with running(size=(120, 40)) as pilot:
        for panel, between in product("123", ((80, 24), (60, 16), (40, 12))):
            await pilot.press(panel)
            await idle(pilot)
            before = focus()
            await resized(pilot, between)
            if between >= (60, 16):
                focus()
            await resized(pilot, (120, 40))
            after = focus()
            if between < (60, 16):
                assert after == before, (panel, between)


async def test_a_field_being_typed_in_survives_a_terminal_that_is_too_small(
    running: Running,
) -> None:
    async with running(size=(120, 40)) as pilot:
        await pilot.press("2", "s", "x")
        await settled(pilot)
        field = pilot.app.focused
        await pilot.resize_terminal(40, 12)
        await settled(pilot)
        await pilot.resize_terminal(120, 40)
        await settled(pilot)
        assert pilot.app.focused is field


@pytest.mark.parametrize("color", [depth.value for depth in Depth])
async def test_every_depth_and_theme_draws_the_same_text(running: Running, color: str) -> None:
    async with running(color=color, config=Settings(theme="qtui-light")) as pilot:
        for theme in ("qtui-light", "qtui-dark", "qtui-contrast"):
            pilot.app.theme = theme
            await still(pilot)
            check_golden("formats_120x40", screen_text(pilot.app))


async def test_every_theme_the_palette_offers_can_be_worn(running: Running) -> None:
    async with running(size=(80, 24)) as pilot:
        offered = [
            name for name in pilot.app.available_themes if pilot.app.theme_choice.offers(name)
        ]
        assert {"qtui-dark", "qtui-light", "qtui-contrast", "nord"} <= set(offered)
        for name in offered:
            pilot.app.theme = name
            await pilot.pause()
        await settled(pilot)
        assert "E4M3" in screen_text(pilot.app)


async def test_ascii_is_ascii_everywhere(running: Running) -> None:
    async with running(ascii=True) as pilot:
        assert screen_text(pilot.app).isascii()
        await pilot.press("question_mark")
        await settled(pilot)
        assert screen_text(pilot.app).isascii()
        await pilot.press("escape", "ctrl+p")
        await settled(pilot)
        assert screen_text(pilot.app).isascii()


async def test_ascii_puts_no_question_mark_where_none_is_meant(running: Running) -> None:
    async with running(ascii=True, size=(140, 80)) as pilot:
        assert screen_text(pilot.app).count("?") == 1  # the key of the help
        assert "Left/Right Bit" in screen_text(pilot.app)
        for keys in (("question_mark",), ("escape", "ctrl+o"), ("escape", "ctrl+p")):
            await pilot.press(*keys)
            await settled(pilot)
            text = screen_text(pilot.app)
            assert "??" not in text
            assert not re.search(r"\?[^ ,fF]|[^ ]\?", text), text
        await pilot.press("escape", "tab", "tab")
        await settled(pilot)
        assert "Enter Next" in screen_text(pilot.app)


async def test_ascii_help_names_the_sign_that_is_drawn(running: Running) -> None:
    async with running(ascii=True, size=(140, 80)) as pilot:
        assert "@" in screen_text(pilot.app)
        await pilot.press("question_mark")
        await settled(pilot)
        text = screen_text(pilot.app)
        assert "The @" in text
        assert "diamond" not in text


def test_every_border_and_scrollbar_of_textual_has_a_likeness_in_ascii() -> None:
    from textual._border import BORDER_CHARS
    from textual.scrollbar import ScrollBarRender

    drawn = {c for rows in BORDER_CHARS.values() for row in rows for c in "".join(row)}
    drawn |= set("".join((*ScrollBarRender.VERTICAL_BARS, *ScrollBarRender.HORIZONTAL_BARS)))
    assert not [c for c in drawn if to_ascii(c) == "?"]


async def test_no_color_in_the_environment_draws_without_colour(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(color="auto") as pilot:
        assert pilot.app.no_color
        for key in ("right", "space", "down", "v", "z", "z", "r", "2", "1"):
            await pilot.press(key)
        await settled(pilot)
        for strip in pilot.app.screen._compositor.render_strips():
            for segment in strip:
                style = segment.style
                assert style is None or (style.color is None and style.bgcolor is None)


@pytest.mark.parametrize("theme", ["qtui-dark", "qtui-light", "qtui-contrast"])
async def test_without_colours_what_is_chosen_is_reversed(running: Running, theme: str) -> None:
    def reversed_text() -> list[str]:
        lines = []
        for strip in pilot.app.screen._compositor.render_strips():
            parts = (s.text for s in strip if s.style and s.style.reverse)
            lines.append("".join(parts).strip(" ▁▂▃▄▅▆▇█"))
        return [line for line in lines if line]

    async with running(color="none", size=(80, 24), config=Settings(theme=theme)) as pilot:
        assert reversed_text() == ["1 Formats", "0"]  # the tab, and the bit under the cursor
        await pilot.press("i")
        await settled(pilot)
        assert "0.1" in reversed_text()  # selected: typing replaces it
        await pilot.press("escape", "ctrl+p")
        await settled(pilot)
        await pilot.press(*"quit")
        await until(pilot, lambda: "app: Quit" in screen_text(pilot.app))
        await until(pilot, lambda: any("Quit" in text for text in reversed_text()))
        await pilot.press("ctrl+u", *"to auto")
        await until(pilot, lambda: any("theme: Switch" in text for text in reversed_text()))


def test_a_wrong_depth_names_the_choices() -> None:
    with pytest.raises(UsageError, match="truecolor, 256, 16, none"):
        depth_of("8", {})


async def test_the_console_writes_the_chosen_depth(running: Running) -> None:
    for color, system in (("256", "256"), ("16", "standard"), ("truecolor", "truecolor")):
        async with running(color=color) as pilot:
            assert pilot.app.console.color_system == system


async def test_header_shows_model_and_device(running: Running) -> None:
    async with running(size=(80, 24)) as pilot:
        pilot.app.set_device("NVIDIA L40S  HBM 3.1/44.5 GiB")
        await settled(pilot)
        first = screen_text(pilot.app).splitlines()[0]
        assert first.strip().startswith("qtui")
        assert "demo" in first
        assert first.endswith("HBM 3.1/44.5 GiB")
