"""`qtui train demo` with the real child: a real step on the CPU against its estimate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import is_gone

from qtui_core.live.snapshot import StepTaken
from qtui_core.live.state import read_recording

pytestmark = pytest.mark.slow

SMALL = ("--seq", "32", "--device", "cpu")


@pytest.mark.parametrize("method", ["qlora", "lora", "full"])
def test_a_real_run_is_held_against_its_estimate(qtui, tmp_path, method):
    record = tmp_path / "run.jsonl"
    done = qtui(
        "train", "demo", "--method", method, *SMALL, "--steps", "3", "--json",
        "--record", str(record),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["measured"]["counted"] == "tensors"
    assert len(data["measured"]["loss"]) == 3
    phases = {phase["name"]: phase for phase in data["phases"]}
    for name in ("prepare", "forward", "loss", "backward", "optimizer", "between steps"):
        assert abs(phases[name]["error"]) < 0.03, phases[name]
    level = data["levels"][0]
    parts = sum(part["bytes"] for part in data["gap"])
    assert parts == level["measured_bytes"] - level["estimated_bytes"]
    assert data["estimate"]["plan"]["method"] == method
    replayed = qtui("replay", str(record), "--json")
    assert json.loads(replayed.stdout) == data


def start_long(record: Path) -> tuple[subprocess.Popen[str], int]:
    """A run that has taken a step and has many more to take, and the process id of its child."""
    child = subprocess.Popen(
        [sys.executable, "-m", "qtui", "train", "demo", "--method", "lora", *SMALL,
         "--steps", "1000", "--json", "--record", str(record)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 300
    while not record.exists() or b'"told":"step"' not in record.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)
    found = subprocess.run(
        ["ps", "--ppid", str(child.pid), "-o", "pid="], capture_output=True, text=True, check=True
    )
    return child, int(found.stdout)


def test_a_real_run_stops_and_leaves_no_process(tmp_path):
    record = tmp_path / "run.jsonl"
    child, worker = start_long(record)
    os.kill(child.pid, signal.SIGINT)
    assert is_gone(worker)  # and with it what it holds of a GPU
    out, _ = child.communicate(timeout=120)
    assert child.returncode == 130
    recording = read_recording(record)
    assert recording.snapshots[-1].reason == "stopped"
    taken = sum(isinstance(told, StepTaken) for told in recording.snapshots)
    assert json.loads(out)["steps_taken"] == taken


def test_a_killed_child_is_a_sentence_and_what_was_measured(tmp_path):
    child, worker = start_long(tmp_path / "run.jsonl")
    os.kill(worker, signal.SIGKILL)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 1
    assert "qtui: The run was killed" in err
    data = json.loads(out)
    assert data["faults"][-1]["kind"] == "killed"
    assert data["steps_taken"] >= 1
    assert data["status"] == "failed"
