"""The time from a key in the form of the Train panel to its drawing, through a pseudo-terminal,
while a real run takes its steps on this machine's processors."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_bench_key_latency import LIMIT_P95_MS, Terminal, latency, p95, start

pytestmark = [pytest.mark.bench, pytest.mark.pty]

DOWN, UP = b"\x1b[B", b"\x1b[A"
FORM_COLUMNS = 3


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    running = start("demo", tmp_path)
    yield running
    running.close()


def test_the_form_answers_during_steps(terminal: Terminal) -> None:
    terminal.wait(lambda: "Formats" in terminal.text())
    terminal.drain(1.0)
    terminal.press(b"5")
    terminal.wait(lambda: "k-bit prep" in terminal.text())
    terminal.drain(2.0)
    samples: list[float] = []
    while len(samples) < 40:
        terminal.press(b"r")
        terminal.wait(lambda: " a step" in terminal.text(), 120.0)
        terminal.drain(0.5)
        while "running" in terminal.text() and len(samples) < 40:
            key = UP if len(samples) // 8 % 2 else DOWN
            samples.append(latency(terminal, key, chosen))
            terminal.drain(0.13)
    print(
        f"\na key during steps: p95 {p95(samples):.0f} ms (median "
        f"{statistics.median(samples):.0f}, max {max(samples):.0f}), load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    assert p95(samples) < LIMIT_P95_MS


def chosen(terminal: Terminal) -> int | None:
    """The current line of the form."""
    lines = terminal.screen.display
    return next((n for n, line in enumerate(lines) if n > 3 and "▸" in line[:FORM_COLUMNS]), None)
