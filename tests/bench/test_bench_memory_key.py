"""The time from a key in the form of the Memory panel to its drawing and to the first answer,
through a pseudo-terminal: when the user waits for the whole estimate, and when not."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_bench_key_latency import LEFT, LIMIT_P95_MS, RIGHT, Terminal, p95, start

pytestmark = [pytest.mark.bench, pytest.mark.pty]

CONFIG = Path(__file__).parents[1] / "memory" / "configs" / "llama-3.1-8b.json"
LIMIT_ANSWER_MS = 50.0
PEAK_LINE, BATCH = 5, re.compile(r"batch +(\d+)")
#: Values of the knob, back and forth, so that no answer is known already.
KEYS = [RIGHT] * 16


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    running = start(str(CONFIG), tmp_path)
    yield running
    running.close()


@pytest.mark.parametrize("seconds", [3.0, 0.4])
def test_a_turned_knob_is_answered(terminal: Terminal, seconds: float) -> None:
    terminal.wait(lambda: "Formats" in terminal.text())
    terminal.drain(1.0)
    terminal.press(b"4")
    terminal.wait(lambda: "process" in terminal.text() and "estimating" not in terminal.text())
    terminal.drain(1.0)
    painted, answered = [], []
    for key in [*KEYS, LEFT]:
        before = _batch(terminal), _peak(terminal)
        pressed = terminal.press(key)
        paint = answer = None
        for came in terminal.read(seconds):
            if paint is None and _batch(terminal) != before[0]:
                paint = came
            if answer is None and _peak(terminal) not in ("", before[1]):
                answer = came
        painted.append(1000 * (paint - pressed) if paint else math.inf)
        answered.append(1000 * (answer - pressed) if answer else math.inf)
    print(
        f"\na key each {seconds} s: painted p95 {p95(painted):.0f} ms "
        f"(median {statistics.median(painted):.0f}), first answer p95 {p95(answered):.0f} ms "
        f"(median {statistics.median(answered):.0f}), "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    assert p95(painted) < LIMIT_P95_MS
    assert statistics.median(answered) < LIMIT_ANSWER_MS


def _batch(terminal: Terminal) -> str:
    found = BATCH.search(terminal.text())
    return found.group(1) if found else ""


def _peak(terminal: Terminal) -> str:
    found = re.search(r"peak [\d.]+ .iB", terminal.screen.display[PEAK_LINE])
    return found.group() if found else ""
