"""What the Quantize panel must not bring into the screen's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_panel_loads_no_numerics() -> None:
    code = (
        "import sys, qtui.tui.app, qtui.tui.panels.quantize.panel\n"
        "heavy = ('numpy', 'torch', 'transformers', 'huggingface_hub', 'pynvml', 'bitsandbytes')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("given", "expected"), [(None, 120), ("30", 30)])
def test_a_key_waits_half_as_long_for_a_frame_unless_told_otherwise(
    given: str | None, expected: int
) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TEXTUAL_FPS"}
    if given is not None:
        environment["TEXTUAL_FPS"] = given
    code = "import qtui.tui.app; from textual.constants import MAX_FPS; print(MAX_FPS)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert int(ran.stdout) == expected
