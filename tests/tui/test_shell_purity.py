"""The process of the screen never loads torch, transformers or pynvml."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, sys
from qtui.tui.app import QtuiApp
from qtui.tui.config import Settings

async def main():
    app = QtuiApp(config=Settings(), color="truecolor")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("space", "r", "t", "4")
        await pilot.pause()

asyncio.run(main())
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_formats_panel_loads_neither_torch_nor_numpy() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert "textual" in loaded
    assert not loaded & {"torch", "transformers", "pynvml", "numpy", "huggingface_hub", "click"}
