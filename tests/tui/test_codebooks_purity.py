"""What the Codebooks panel must not bring into the screen's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_panel_loads_no_numerics() -> None:
    code = (
        "import sys, qtui.tui.app, qtui.tui.panels.codebooks.panel\n"
        "heavy = ('numpy', 'torch', 'transformers', 'huggingface_hub', 'pynvml', 'bitsandbytes')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"
