"""The process of the screen never loads torch, transformers or pynvml, nor numpy before a plan asks
for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qtui.tui.panels import PANELS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    *("torch", "transformers", "peft", "bitsandbytes"),
    *("pynvml", "numpy", "huggingface_hub", "click"),
}

#: Every panel is imported, the app draws Formats, Memory and a page of the lab.
SCRIPT = """
import asyncio, importlib, pkgutil, sys
import lab_findings
import qtui.tui.panels
from qtui.report.faces.html import to_html
from qtui.report.lab.document import lab_document
from qtui.tui.app import QtuiApp
from qtui.tui.config import Settings
from textual.constants import MAX_FPS

for room in pkgutil.iter_modules(qtui.tui.panels.__path__):
    importlib.import_module(f"qtui.tui.panels.{room.name}.panel")
to_html(lab_document(lab_findings.result(), "qtui lab"))

async def main():
    app = QtuiApp(config=Settings(), color="truecolor")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("space", "R", "v", "4")
        await pilot.pause()

asyncio.run(main())
print(MAX_FPS, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def told(code: str, **environment: str) -> list[str]:
    """The words that a program prints."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
    kept = {name: text for name, text in os.environ.items() if name != "TEXTUAL_FPS"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=120, env={**kept, **paths, **environment},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_the_app_with_all_its_panels_loads_no_numerics() -> None:
    frames, *loaded = told(SCRIPT)
    assert "textual" in loaded
    assert HEAVY.isdisjoint(loaded)
    # A key waits for the next frame half as long as Textual would have it wait,
    assert int(frames) == 120


def test_frames_are_as_many_as_the_user_says() -> None:
    code = "import qtui.tui.app; from textual.constants import MAX_FPS; print(MAX_FPS)"
    assert told(code, TEXTUAL_FPS="30") == ["30"]  # unless told otherwise.


#: What the first picture needs not. The others come with Textual or asyncio.
LATER = {
    *("ssl", "email", "http", "unittest", "tomllib", "markdown_it", "pygments", "tree_sitter"),
    *("textual.widgets._markdown", "textual.widgets._data_table", "rich.progress", "rich.markdown"),
    *("qtui.engine", "qtui.report.faces", "qtui.report.document"),
    *("qtui_core.memory", "qtui_core.quant", "qtui_core.lab", "qtui_core.models.opening"),
    *("qtui_core.inspection", "qtui_core.telemetry", "qtui_core.evaluation"),
    *(f"qtui.tui.panels.{panel.id}" for panel in PANELS if panel.id != "formats"),
}
UNTIL_DRAWN = """
import sys
from qtui.cli.commands.app import import_asyncio
import_asyncio()
from qtui.tui.app import QtuiApp
display = QtuiApp._display
def first(app, screen, renderable):
    display(app, screen, renderable)
    if app.drawn and not app._exit:
        print(*sys.modules)
        app.exit()
QtuiApp._display = first
QtuiApp(color="truecolor", look_ahead=False).run(headless=True, size=(120, 40))
"""
FIRST_LINES = """
import sys
from qtui.cli.commands import COMMANDS
from qtui.tui.first.screen import read_arguments
from qtui.tui.first.lines import first_lines
assert first_lines(read_arguments([], COMMANDS)[0], "truecolor", False, 80, 24)
print(*sys.modules)
"""


@pytest.mark.slow
def test_the_first_picture_waits_for_no_import_that_it_does_not_need() -> None:
    loaded = told(UNTIL_DRAWN)
    assert "qtui.tui.panels.formats.panel" in loaded
    assert not {n for n in loaded if any(n == late or n.startswith(f"{late}.") for late in LATER)}


@pytest.mark.slow
def test_the_first_lines_are_drawn_before_textual_is_imported() -> None:
    loaded = {name.partition(".")[0] for name in told(FIRST_LINES)}
    assert "platformdirs" in loaded
    assert {*HEAVY, "textual", "rich", "asyncio", "ssl", "logging", "json"}.isdisjoint(loaded)


def test_the_estimator_loads_neither_numerics_nor_the_screen() -> None:
    code = "import sys, qtui.engine.estimator.child; print(*sys.modules)"
    assert {*HEAVY, "textual"}.isdisjoint(told(code))
