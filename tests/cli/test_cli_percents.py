"""Shares are written in one way everywhere: "16%", never "16 %"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SPACED = re.compile(r"\d %(?=[\s.,;:)]|$)", re.MULTILINE)
SCREENS = Path(__file__).parents[1] / "tui" / "golden"


@pytest.mark.parametrize(
    "command",
    [
        ("formats", "0.1"),
        ("formats", "70000", "--format", "markdown"),
        ("memory", "demo"),
        ("memory", "demo", "--method", "full", "--vram", "1GiB", "--explain"),
        ("inspect", "demo", "--schemes", "int4:tensor,nf4"),
        ("inspect", "demo", "--schemes", "int8", "--format", "html"),
    ],
    ids=" ".join,
)
def test_reports_set_no_space_before_a_percent_sign(qtui, command: tuple[str, ...]) -> None:
    done = qtui(*command)
    assert done.returncode in (0, 1), done.stderr
    text = done.stdout + done.stderr
    assert re.search(r"\d%", text), "no percent is written, so nothing is tested"
    assert SPACED.findall(text) == []


def test_screens_set_no_space_before_a_percent_sign() -> None:
    screens = {path.name: path.read_text(encoding="utf-8") for path in SCREENS.glob("*.txt")}
    assert sum("%" in text for text in screens.values()) > 40
    assert [name for name, text in screens.items() if SPACED.search(text)] == []
