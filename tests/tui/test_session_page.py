"""The page of a session: every view that was on the screen, in the order of the first look."""

from __future__ import annotations

import errno
import os
import re
from html import unescape
from pathlib import Path

import pytest
from browser import needs_chromium, opened
from screens import Running, settled, until
from textual.pilot import Pilot

from qtui.tui.panels.formats.panel import FormatsPanel

SEEN = re.compile(r"<h2>(.*?)</h2>")


async def export(pilot: Pilot[None], folder: Path) -> str:
    before = set(folder.glob("qtui-session-*.html"))
    await pilot.press("E")
    await until(pilot, lambda: len(set(folder.glob("qtui-session-*.html")) - before) == 1)
    (path,) = set(folder.glob("qtui-session-*.html")) - before
    return path.read_text()


def told(pilot: Pilot[None]) -> str:
    """What the app said last, in its notices."""
    return " ".join(str(each.message) for each in pilot.app._notifications)


async def visit_two(pilot: Pilot[None]) -> None:
    """Formats with a pinned format, then the first two views of Memory."""
    await pilot.press("P", "down")
    await settled(pilot)
    await pilot.press("4")
    await until(pilot, lambda: pilot.app.panel.PANEL_ID == "memory")
    await settled(pilot)
    await pilot.press("v")
    await settled(pilot)


async def test_every_view_that_was_seen_is_on_the_page(running: Running, tmp_path: Path) -> None:
    async with running(size=(120, 40)) as pilot:
        await visit_two(pilot)
        sentence = pilot.app.panel.sentence
        text = await export(pilot, tmp_path)
        formats = pilot.app.query_one(FormatsPanel)
        first, second = (view.TITLE for view in pilot.app.panel.views[:2])
        assert SEEN.findall(text) == [
            "This session", "Formats", f"Memory: {first}", f"Memory: {second}",
        ]  # fmt: skip
        # The answer is first: the sentence of the view that was seen last.
        (answer,) = re.findall(r'class="conclusion">(.*?)</p>', text)
        assert unescape(answer) == f"Memory: {second}: {sentence}"
        assert formats.sentence in unescape(text)
        assert "P E4M3" in text  # of the text twin of Formats
        assert text.count("<svg") == text.count("</svg>") == 3
        assert text.count("<pre>") == 3
        assert "qtui demo" in text
        assert "The same on the command line: qtui formats 0.1" in text
        assert re.findall(r"(?:https?:)?//\w+|\bsrc=|\bhref=|@import|url\(", text) == []
        assert "default-src 'none'" in text
        # A view that is seen again has its newest state, and its place.
        await pilot.press("1")
        await settled(pilot)
        await pilot.press("up", "P")
        await settled(pilot)
        await pilot.press("P")
        await settled(pilot)
        again = await export(pilot, tmp_path)
        assert SEEN.findall(again) == SEEN.findall(text)
        assert "P E4M3" not in again
        assert len(list(tmp_path.glob("qtui-session-*.html"))) == 2  # nothing is overwritten
        await pilot.press("4", "right")
        await settled(pilot)
        facts = unescape(await export(pilot, tmp_path))
        assert re.search(r"plan</\w+>\s*<\w+[^>]*>--batch 2<", facts)  # and nothing left open


async def test_a_view_that_was_never_painted_was_not_seen(running: Running, tmp_path: Path) -> None:
    async with running(size=(120, 40)) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: pilot.app.panel.PANEL_ID == "memory")
        await settled(pilot)
        panel = pilot.app.panel
        for view in panel.views[1:3]:  # in one go, as keys of one packet are
            panel.show_view(view)
        await settled(pilot)
        seen = SEEN.findall(await export(pilot, tmp_path))
        assert f"Memory: {panel.views[1].TITLE}" not in seen
        assert f"Memory: {panel.views[2].TITLE}" in seen


async def test_what_cannot_be_written_is_a_sentence(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with running(size=(120, 40)) as pilot:
        with monkeypatch.context() as patch:
            patch.setattr("qtui_core.files.Draft.write", full)
            await pilot.press("E")
            await until(pilot, lambda: "No space left on" in told(pilot))
        assert "Nothing was exported: Cannot write" in told(pilot)
        assert not list(tmp_path.glob("qtui-session-*"))
        for nowhere, said in (("none", "there is no folder"), ("~no-such-user", "~no-such-user")):
            folder = nowhere if nowhere.startswith("~") else str(tmp_path / nowhere)
            pilot.app.config = type(pilot.app.config)(export_folder=folder)
            await pilot.press("E")
            await until(pilot, lambda said=said: said in told(pilot))


@pytest.mark.slow
@needs_chromium
async def test_the_page_in_a_browser(running: Running, tmp_path: Path) -> None:
    async with running(size=(120, 40)) as pilot:
        await visit_two(pilot)
        await export(pilot, tmp_path)
    (path,) = tmp_path.glob("qtui-session-*.html")
    async with opened(path.as_uri(), tmp_path / "profile") as page:
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            await page.call("Emulation.setEmulatedMedia", media="screen", features=[feature])
            paper = await page.run("getComputedStyle(document.body).backgroundColor")
            assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
        for width in (390, 1280):
            await page.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=800,
                deviceScaleFactor=1, mobile=width < 500,
            )  # fmt: skip
            assert await page.run("document.documentElement.scrollWidth") <= width
        # Text of the pictures stands where its cells are: no line is wider than the picture.
        assert await page.run(
            "[...document.querySelectorAll('svg.screen')].every(s => [...s.querySelectorAll("
            "'tspan')].every(t => t.getBoundingClientRect().right <= "
            "s.getBoundingClientRect().right + 2))"
        )
        assert await page.run("document.querySelectorAll('details pre').length") == 3
        printed = await page.call("Page.printToPDF", printBackground=True)
        assert len(printed["data"]) > 20_000
        assert page.requests == [path.as_uri()]
        assert not page.complaints
