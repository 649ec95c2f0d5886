"""A session of many hours in a terminal: the app keeps its memory, its descriptors and its
processes, and every recording is complete.

By default a small form of it. LONG_SESSION=1 makes two hours of a run, 79,000 messages as fast as
the app reads them, and 100 runs with a restart of all processes after each. With -s it prints what
it measured.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import alive
from terminals import Terminal, program

from qtui_core.live.snapshot import End, StepTaken
from qtui_core.live.state import read_recording
from qtui_core.training.run.request import USUAL_STEPS

pytestmark = [pytest.mark.pty, pytest.mark.slow]

SUPPORT = Path(__file__).parents[1] / "support"
LONG = "LONG_SESSION" in os.environ
#: Steps of the one long run: each has 22 messages and takes 2 s of the run's own clock.
STEPS = 3600 if LONG else 120
#: Runs of twenty steps, after each of which all processes of the app are killed.
RUNS = 100 if LONG else 2
#: Runs and restarts before the first measurement, which fill what is kept once.
WARM_UP = 2 if LONG else 1
MOST_GROWTH = 20 << 20
ENGINE, ESTIMATOR = "qtui.engine.worker", "qtui.engine.estimator.child"


@dataclass(frozen=True)
class Held:
    """What the app holds: resident bytes, open descriptors, processes below it."""

    resident: int
    descriptors: int
    processes: tuple[str, ...]


def children(pid: int) -> dict[int, str]:
    """The living processes whose parent is `pid`, with the module that each runs."""
    found = {}
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, each.read_text().split()):
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            if alive(child):
                found[child] = next((w for w in words if w.startswith("qtui.")), words[-1])
    return found


def held(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) << 10
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Held(resident, descriptors, tuple(sorted(children(pid).values())))


def last_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        return file.read()


def finished(terminal: Terminal, home: Path, before: set[Path], seconds: float) -> Path:
    """The recording that is not among those `before`, once the run has ended."""

    def ended() -> set[Path]:
        new = set(home.rglob("run-*.jsonl")) - before
        return {path for path in new if b'"told":"end"' in last_bytes(path)}

    terminal.wait_until(ended, seconds)
    return ended().pop()


def check(path: Path, steps: int) -> int:
    """How many snapshots a recording has; fails unless it has every step and its end."""
    recording = read_recording(path)
    assert recording.complaint == ""
    taken = [told.step for told in recording.snapshots if isinstance(told, StepTaken)]
    assert taken == list(range(1, steps + 1))
    assert isinstance(recording.snapshots[-1], End)
    return len(recording.snapshots)


def run(terminal: Terminal, home: Path, steps: int) -> int:
    """One run of the Train panel; returns how many snapshots were recorded."""
    before = set(home.rglob("run-*.jsonl"))
    while not set(home.rglob("run-*.jsonl")) - before:  # it is not taken while the plan is asked
        terminal.send("r")
        terminal.settle(0.5, seconds=2)
    path = finished(terminal, home, before, 1200 if LONG else 30)
    terminal.wait_for(f"{steps} of ", 20)
    return check(path, steps)


def choose_steps(terminal: Terminal, steps: int) -> None:
    terminal.send(":")
    terminal.wait_for("run until stopped", 20)
    terminal.send(f"{steps}\r")
    terminal.wait_for_no("run until stopped")
    terminal.settle(0.2, seconds=2)


def restart(terminal: Terminal) -> None:
    """All processes of the app are killed, and it is asked for what each of them answers."""
    before = children(terminal.pid)
    assert ENGINE in before.values()
    for child in before:
        with suppress(ProcessLookupError):  # a child that ends with its parent
            os.kill(child, signal.SIGKILL)
    for panel, key, module in (("2", ")", ENGINE), ("5", "l", ESTIMATOR)):
        terminal.send(panel)
        for _ in range(20):
            terminal.settle(0.2, seconds=2)
            if module in children(terminal.pid).values():
                break
            terminal.send("r" if "r starts it again" in terminal.text else key)
    terminal.settle(0.3, seconds=3)
    terminal.wait_until(lambda: not before.keys() & children(terminal.pid).keys())
    terminal.send("h")
    terminal.settle(0.3, seconds=3)


def test_a_long_session_holds_no_more_than_a_short_one(tmp_path: Path) -> None:
    path = f"{SUPPORT}:{SUPPORT.parents[1]}"
    app = str(SUPPORT / "scripted_app.py")
    with program(tmp_path, app, size=(120, 40), SCRIPT="whole", PYTHONPATH=path) as terminal:
        terminal.wait_for("parameters")
        terminal.send("5")
        terminal.wait_for("estimate")
        told = []

        def look(what: str, snapshots: int) -> None:
            told.append(now := held(terminal.pid))
            print(
                f"{what}: {snapshots:,} snapshots, {now.resident / 2**20:.1f} MiB, "
                f"{now.descriptors} descriptors, processes {now.processes}"
            )

        for _ in range(WARM_UP):
            snapshots = run(terminal, tmp_path, USUAL_STEPS)
            restart(terminal)
        look("warm", snapshots)
        choose_steps(terminal, STEPS)
        look("the long run", run(terminal, tmp_path, STEPS))
        choose_steps(terminal, USUAL_STEPS)
        for _ in range(RUNS):
            snapshots = run(terminal, tmp_path, USUAL_STEPS)
            restart(terminal)
            look("a run and a restart", snapshots)
        first, *others = told
        for now in others:
            assert now.resident < first.resident + MOST_GROWTH, told
            assert now.descriptors <= first.descriptors, told
            assert set(now.processes) <= set(first.processes), told
            assert len(now.processes) <= len(first.processes), told
        terminal.send("q")
        assert terminal.exit_code() == 0
