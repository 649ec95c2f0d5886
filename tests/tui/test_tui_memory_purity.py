"""What the Memory panel and its estimator must not bring into their processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "torch", "transformers", "huggingface_hub", "pynvml", "bitsandbytes")


@pytest.mark.parametrize(
    ("imported", "more"),
    [
        ("qtui.tui.app, qtui.tui.panels.memory.panel", ()),
        ("qtui.engine.estimator.child", ("textual",)),
    ],
)
def test_nothing_heavy_is_loaded(imported: str, more: tuple[str, ...]) -> None:
    code = (
        f"import sys, {imported}\n"
        f"print([name for name in {(*HEAVY, *more)} if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"
