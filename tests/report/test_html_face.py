"""The HTML face: a page that asks for nothing, and tables that a click on a heading sorts."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import pytest
from browser import needs_chromium, opened

from qtui.report.document import Column, Document, Facts, Section, Table
from qtui.report.faces.html import to_html

ROWS = (
    ("tensor 10", "1,024 KiB", "−0.5"),
    ("tensor 2", "2 GiB", "1.5e-3"),
    ("<b>tensor 1</b>", "–", "+12"),
    ("tensor 3", "512 B", "<0.1%"),
)
COLUMNS = (Column("name", key=True), Column("size", numeric=True), Column("change", numeric=True))
#: Column -> the rows after one click and after two; after three they are as given.
SORTED = {
    0: ([2, 1, 3, 0], [0, 3, 1, 2]),  # by the numbers in names, as people do
    1: ([1, 0, 3, 2], [3, 0, 1, 2]),  # – stays last
    2: ([2, 3, 1, 0], [0, 1, 3, 2]),
}


def page(columns=COLUMNS, rows=ROWS) -> str:
    table = Table(columns, rows, bars=(0.1,) * len(rows), bar_title="share")
    facts = Facts((("a </script> name", "its value"),))
    return to_html(Document("title", (Section("s", (facts, table)),), "It is so."))


def test_the_page_asks_for_nothing_and_runs_its_own_script_only():
    text = page()
    assert re.findall(r"(?:https?:)?//\w+|\bsrc=|\bhref=|@import|url\(", text) == []
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert "<b>" not in text
    assert text.index("It is so.") < text.index("<table")


@pytest.mark.slow
@needs_chromium
async def test_a_click_on_a_heading_sorts(tmp_path):
    """By each column, with and without bars after it; a table of two rows has nothing to sort."""
    report = tmp_path / "report.html"
    report.write_text(page())
    names = [row[0] for row in ROWS]
    async with opened(report.as_uri(), tmp_path / "profile") as shown:

        async def order():
            found = await shown.run(
                "[...document.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)"
            )
            return [names.index(name) for name in found]

        assert await shown.run(
            "[...document.querySelectorAll('th')].map(h => !!h.firstElementChild)"
        ) == [
            True,
            True,
            True,
            False,  # of bars
        ]
        for column, (first, second) in SORTED.items():
            for wanted in (first, second, [0, 1, 2, 3]):
                await shown.run(f"document.querySelectorAll('th button')[{column}].click()")
                assert await order() == wanted, column
        assert await shown.run("document.querySelector('tbody b')") is None
        assert [url for url in shown.requests if not url.startswith("file:")] == []
        assert shown.complaints == []
        report.write_text(page(rows=ROWS[:2]))
        await shown.call("Page.reload")
        await shown.until("document.querySelectorAll('tbody tr').length === 2")
        assert await shown.run("document.querySelectorAll('th button').length") == 0
