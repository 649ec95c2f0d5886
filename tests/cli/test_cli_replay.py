"""`qtui replay` without a terminal: the report of a recording, whole, cut off, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_runs import run

from qtui_core.live.snapshot import End, Fault, PhaseBegun, PhaseEnded
from qtui_core.live.state import to_line


@pytest.fixture(params=[True, False], ids=["gpu", "cpu"])
def recording(request, tmp_path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(to_line(told) + "\n" for told in run(gpu=request.param)))
    return path


def test_a_recording_is_a_report(qtui, recording):
    done = qtui("replay", str(recording))
    assert done.returncode == 0
    assert done.stderr == ""
    assert "What the difference is" in done.stdout
    assert "Notes" in done.stdout or "device, all processes" in done.stdout


@pytest.mark.parametrize("format", ["json", "markdown", "html"])
def test_every_face(qtui, recording, format):
    done = qtui("replay", str(recording), "--format", format)
    assert done.returncode == 0
    assert "optimizer states" in done.stdout
    assert recording.name in done.stdout or format == "json"


def test_a_recording_that_is_cut_off_says_so(qtui, recording):
    text = recording.read_bytes()
    recording.write_bytes(text[: len(text) // 2])
    done = qtui("replay", str(recording))
    assert done.returncode == 0
    assert "cut off" in done.stdout
    assert json.loads(qtui("replay", str(recording), "--json").stdout)["status"] == "running"


def test_a_whole_recording_to_a_file(qtui, recording, tmp_path):
    report = tmp_path / "report.md"
    assert qtui("replay", str(recording), "-o", str(report)).returncode == 0
    assert "## By phase" in report.read_text()


@pytest.mark.parametrize("content", [None, "", "not a recording\n"])
def test_what_is_no_recording(qtui, tmp_path, content):
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    done = qtui("replay", str(path))
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "said"), [(0, "is exact"), (1, "is right to 0.01%"), (10**6, "too high")]
)
def test_an_error_is_told_in_digits_that_it_has(qtui, recording, more, said):
    peak = json.loads(qtui("replay", str(recording), "--json").stdout)["measured"]
    header, *others = recording.read_text().splitlines()
    told = json.loads(header)
    told["predicted"]["peak_allocated_bytes"] = peak["peak_allocated_bytes"] + more
    recording.write_text("\n".join([json.dumps(told), *others]) + "\n")
    conclusion = json.loads(qtui("replay", str(recording), "--json").stdout)["conclusion"]
    assert said in conclusion
    assert "0.00%" not in conclusion


def test_a_run_that_failed_before_anything_was_made_has_no_peak(qtui, tmp_path):
    header = next(iter(run(gpu=False)))
    text = "There is no tokenizer."
    events = [
        header,
        PhaseBegun(0.1, 0, "import"),
        PhaseEnded(1.0, 0, "import", 0, 0, counted="tensors"),
        Fault(1.1, 0, "import", "model", text),
        End(1.2, "failed"),
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(to_line(told) + "\n" for told in events))
    conclusion = json.loads(qtui("replay", str(path), "--json").stdout)["conclusion"]
    assert conclusion.startswith(text)
    assert "peak" not in conclusion
