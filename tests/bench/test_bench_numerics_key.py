"""The time from a key in the Numerics panel to its drawing, through a pseudo-terminal, while an
experiment trains on this machine's processors."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_bench_key_latency import Terminal, latency, p95, start

pytestmark = [pytest.mark.bench, pytest.mark.pty]

DOWN, UP = b"\x1b[B", b"\x1b[A"
LEFT_COLUMNS = 3
#: Keys of each kind; more would outlast the experiment.
KEYS = 60


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    running = start("demo", tmp_path)
    yield running
    running.close()


def test_the_panel_answers_while_an_experiment_runs(terminal: Terminal) -> None:
    """Keys of the form, where a line is drawn anew, and of the list, where all of the panel is."""
    terminal.wait(lambda: "Formats" in terminal.text())
    terminal.drain(1.0)
    terminal.press(b"6")
    terminal.wait(lambda: "underflow" in terminal.text())
    terminal.drain(3.0)
    terminal.press(b"\r")  # from the list to the form
    terminal.drain(0.5)
    found = {"idle form": _keys(terminal, KEYS // 2)}
    terminal.press(b"r")
    terminal.wait(lambda: "running" in terminal.text() and "step" in terminal.text(), 120.0)
    found["form"] = _keys(terminal, KEYS)
    terminal.press(b"\t\t")  # round to the list
    terminal.drain(0.5)
    found["list"] = _keys(terminal, KEYS)
    told = [
        f"{name} p95 {p95(took):.0f} ms (median {statistics.median(took):.0f}, max {max(took):.0f})"
        for name, took in found.items()
    ]
    print(f"\n{', '.join(told)}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _keys(terminal: Terminal, count: int) -> list[float]:
    took = []
    for number in range(count):
        took.append(latency(terminal, DOWN if number % 4 < 2 else UP, chosen))
        terminal.drain(0.1)
    return took


def chosen(terminal: Terminal) -> tuple[int, ...]:
    """The current lines of the list and of the form."""
    lines = terminal.screen.display
    return tuple(n for n, line in enumerate(lines) if n > 1 and "▸" in line[:LEFT_COLUMNS])
