"""The HTML face: a page that asks for nothing, and tables that a click on a heading sorts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from html import unescape

import pytest

from qtui.report.document import Column, Document, Facts, Section, Table
from qtui.report.faces.html import to_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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


#: In a page: the titles that sort, and the order of the rows after each click on each of them.
CLICKS = """
const order = () => [...document.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent);
const heads = [...document.querySelectorAll('th')].map(h => !!h.firstElementChild);
const orders = [...document.querySelectorAll('th button')].map(
  button => [0, 1, 2].map(() => { button.click(); return order(); }));
document.title = JSON.stringify([heads, orders, document.querySelector('tbody b')]);
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_click_on_a_heading_sorts(tmp_path):
    """By each column, with and without bars after it; a table of two rows has nothing to sort. The
    page's policy allows its own script, and that of the test."""

    def clicked(text):
        digest = b64encode(sha256(CLICKS.encode()).digest()).decode()
        text = text.replace("script-src '", f"script-src 'sha256-{digest}' '")
        (tmp_path / "page.html").write_text(text + f"<script>{CLICKS}</script>")
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return json.loads(unescape(re.search("<title>(.*?)</title>", done.stdout, re.S)[1]))

    heads, orders, markup = clicked(page())
    assert (heads, markup) == ([True, True, True, False], None)  # the last is of bars
    for column, (first, second) in SORTED.items():
        wanted = [[ROWS[at][0] for at in order] for order in (first, second, range(4))]
        assert orders[column] == wanted, column
    assert clicked(page(rows=ROWS[:2]))[1] == []
