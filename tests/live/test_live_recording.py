"""Recordings written and read: complete, cut off at any byte, and with invalid lines."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_lab import events as experiment

from qtui_core.errors import UsageError
from qtui_core.files import target_of
from qtui_core.lab.recording import LAB_LINES, parse_lab_recording
from qtui_core.live.snapshot import (
    End,
    LogMessage,
    PhaseBegun,
    Predicted,
    PredictedCurve,
    RecordingHeader,
    RunDevice,
    StepTaken,
)
from qtui_core.live.state import parse_recording, read_recording, to_line
from qtui_core.recorded_lines import LONGEST, Recorder

HEADER = RecordingHeader(
    made="2026-01-02T03:04:05+00:00",
    model="demo",
    architecture="LlamaForCausalLM",
    parameters=4_558_080,
    device=RunDevice("cpu", "a processor"),
    versions={"qtui": "0"},
    plan={"method": "lora"},
    steps=1,
    data="built-in text",
    predicted=None,
    why_not="nobody asked",
)
TOLD = (
    PhaseBegun(0.0, 0, "load"),
    LogMessage(0.1, "zwölf\nlines"),
    StepTaken(1.0, 1, 5.5, 0.5, 64),
    End(1.1, "done"),
)
TEXT = "".join(to_line(told) + "\n" for told in (HEADER, *TOLD)).encode()


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "run.jsonl"
    with Recorder(target_of(str(path)), to_line) as recorder:
        for told in (HEADER, *TOLD):
            recorder.write(told)
            assert path.read_bytes().endswith(to_line(told).encode() + b"\n")  # at once
    assert path.read_bytes() == TEXT
    recording = read_recording(path)
    assert tuple(recording) == (HEADER, *TOLD)
    assert recording.complaint == ""


@settings(max_examples=60)
@given(st.integers(len(to_line(HEADER)) + 1, len(TEXT) - 1))
def test_a_recording_cut_off_anywhere_gives_what_is_whole(length):
    recording = parse_recording(TEXT[:length].split(b"\n"))
    assert recording.snapshots == TOLD[: len(recording.snapshots)]
    whole = TEXT[:length].count(b"\n") - 1
    assert len(recording.snapshots) in (whole, whole + 1)  # the last may lack its end alone
    if End(1.1, "done") not in recording.snapshots:
        assert recording.complaint.endswith("shown.")


def damaged(lines):
    """What is said of lines -> these lines damaged, of which all others are read."""
    return {
        "Line 3 cannot be read and is left out: It is no line of JSON.": [
            *lines[:2], "{", *lines[2:],
        ],
        "2 lines cannot be read and are left out; the first is line 3: It is no line of JSON.": [
            *lines[:2], "{'single': 1}", "", b"\xff", *lines[2:],
        ],
        f"Line {len(lines) + 1} cannot be read and is left out: A second recording begins there.":
            lines + lines,
        "": lines,
    }  # fmt: skip


def test_broken_lines_are_left_out_and_told():
    for complaint, lines in damaged(TEXT.splitlines()).items():
        recording = parse_recording(lines)
        assert (recording.snapshots, recording.complaint) == (TOLD, complaint)
    lines = [LAB_LINES.to_line(told) for told in experiment({})]
    cut_off = {
        "The recording stops before the experiment did; all of it is shown.": lines[:-1],
        "The recording is cut off in line 8; everything before that is shown.": [
            *lines[:-1], lines[-1][:20],
        ],
    }  # fmt: skip
    for complaint, found in (damaged(lines) | cut_off).items():
        assert parse_lab_recording(found).complaint == complaint


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "empty"), (b"%PDF-1.7\n", "first line"), (TEXT.split(b"\n", 1)[1], "not a header")],
)
def test_what_is_no_recording_is_a_sentence(tmp_path, content, says):
    path = tmp_path / "report.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        read_recording(path)
    assert "report.txt" in str(caught.value)


CURVE = PredictedCurve((0, 4, 8), ("weights", "adapters"), ((3, 3, 3), (0, 1, 2)), (("a", 0, 9),))


@pytest.mark.parametrize(
    "wrong",
    [
        {"components": ("weights",)},
        {"bytes": ((3, 3), (0, 1, 2))},
        {"positions": (0, 4, 4)},
        {"bytes": ((3, 3, 3), (0, -1, 2))},
        {"spans": (("a", 0, 5), ("b", 3, 9))},
        {"spans": (("a", -1, 5),)},
    ],
)
def test_a_curve_that_contradicts_itself_is_no_header(wrong):
    predicted = Predicted(3, 5, "a", None, 5, 0, 0, (), CURVE)
    parse_recording([to_line(replace(HEADER, predicted=predicted))])
    predicted = replace(predicted, curve=replace(CURVE, **wrong))
    with pytest.raises(UsageError, match="contradicts itself"):
        parse_recording([to_line(replace(HEADER, predicted=predicted))])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_what_was_told_at_no_time_is_left_out(seconds):
    lines = [to_line(HEADER), to_line(LogMessage(seconds, "x")), to_line(End(1.0, "done"))]
    recording = parse_recording(lines)
    assert recording.snapshots == (End(1.0, "done"),)
    assert recording.complaint.startswith("Line 2 cannot be read")


def test_files_that_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_recording(tmp_path / "none")
    if Path("/dev/zero").exists():  # is not read to its end
        with pytest.raises(UsageError, match="longer than 16 MiB"):
            read_recording("/dev/zero")


def test_a_line_that_is_too_long_is_one_line_that_is_left_out(tmp_path):
    path = tmp_path / "long.jsonl"
    first, *rest = TEXT.splitlines(keepends=True)
    path.write_bytes(first + b"x" * (LONGEST + 5) + b"{}\n" + b"".join(rest))
    recording = read_recording(path)
    assert len(recording.snapshots) == len(TOLD)
    assert recording.complaint == "Line 2 cannot be read and is left out: It is longer than 16 MiB."
