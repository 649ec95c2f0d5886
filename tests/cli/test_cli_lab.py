"""`qtui lab`: the list, an experiment by name, its record, going on from it, and bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from qtui.engine.lab.client import lab_client
from qtui_core.lab.catalog import EXPERIMENTS
from qtui_core.lab.recording import read_lab_recording

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPTED = (sys.executable, str(SUPPORT / "scripted_lab.py"), "all")
#: `qtui` with the made-up experiment, which waits after its first part.
WAITING = f"""
import functools, sys
from qtui.cli import lab_run, main
lab_run.lab_client = functools.partial(lab_run.lab_client, {(*SCRIPTED[:2], "half")!r})
main()
"""


def test_the_list_has_every_experiment_with_its_question_and_cost(qtui):
    done = qtui("lab")
    assert done.returncode == 0
    for row in EXPERIMENTS:
        assert row.name in done.stdout
        assert row.question in " ".join(done.stdout.split())
        assert qtui("lab", row.name, "--help").stdout.count(row.question) == 1
    listed = json.loads(qtui("lab", "--json").stdout)
    assert [row["name"] for row in listed["experiments"]] == [row.name for row in EXPERIMENTS]


@pytest.mark.slow
def test_an_experiment_is_run_recorded_replayed_and_not_run_again(qtui, tmp_path):
    found, resumed = check_recorded(qtui, tmp_path, "survive", "lossscale")
    assert found["verdict"].startswith("At lr 0.0001 the run does not survive BF16 weights")
    assert resumed["seconds"] < found["seconds"]


def test_what_a_child_tells_is_recorded_replayed_and_gone_on_with(qtui, tmp_path, monkeypatch):
    monkeypatch.setattr("qtui.cli.lab_run.lab_client", partial(lab_client, SCRIPTED))
    found, _ = check_recorded(qtui, tmp_path, "underflow", "survive")
    assert found["rows"][0]["d"] == 0.009


def test_a_fault_after_results_is_told_with_them_and_is_no_success(qtui, tmp_path, monkeypatch):
    late = (*SCRIPTED[:2], "late")
    monkeypatch.setattr("qtui.cli.lab_run.lab_client", partial(lab_client, late))
    record = tmp_path / "run.jsonl"
    done = qtui("lab", "underflow", "--record", str(record), "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["ended"], found["fault"], found["done"]) == ("failed", "The disk is full.", 1)
    assert found["conclusion"].startswith("The experiment failed: The disk is full. ")
    assert done.stderr.count("qtui: The disk is full.") == 1
    assert json.loads(qtui("replay", str(record), "--json").stdout)["conclusion"].startswith(
        "The experiment failed: The disk is full. "
    )


def check_recorded(qtui, folder, name, other):
    """Runs the experiment `name`, replays its record and goes on from it, also where that cannot
    be; what the run and the second one told."""
    record = folder / "run.jsonl"
    done = qtui("lab", name, "--lr", "1e-4", "--record", str(record), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ended"] == "done"
    assert found["settings"]["lr"] == 1e-4
    assert re.search(r"\d+ to \d+ s\.", done.stderr)

    recording = read_lab_recording(record)
    assert recording.complaint == ""
    assert [job.job for job in recording.jobs] == list(recording.begun.jobs)
    replayed = json.loads(qtui("replay", str(record), "--json").stdout)
    assert replayed == found
    assert found["verdict"] in " ".join(qtui("replay", str(record)).stdout.split())

    again = qtui("lab", name, "--lr", "1e-4", "--resume", str(record), "--json")
    assert again.returncode == 0, again.stderr
    resumed = json.loads(again.stdout)
    assert resumed["rows"] == found["rows"]

    cut = folder / "cut.jsonl"
    cut.write_bytes(record.read_bytes().splitlines(keepends=True)[0])
    assert "stops before the first part" in qtui("replay", str(cut)).stderr
    for options, says in {
        (name, "--lr", "1e-3"): "was made with another --lr",
        (other,): f"is a recording of {name}",
    }.items():
        refused = qtui("lab", options[0], *options[1:], "--resume", str(record))
        assert refused.returncode == 2
        assert says in refused.stderr
    return found, resumed


@pytest.mark.parametrize("records", [True, False])
def test_a_signal_to_end_says_what_is_kept_and_how_to_go_on(tmp_path, records):
    record = tmp_path / "the run.jsonl"
    options = ("--record", str(record)) if records else ()
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING, "lab", "underflow", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )
    assert child.stderr is not None
    while "fp32 (1 of 2)" not in (line := child.stderr.readline()):
        assert line
    while records and record.read_bytes().count(b"\n") < 6:  # all that is told before it waits
        time.sleep(0.02)
    child.terminate()
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out) == (-signal.SIGTERM, "")
    how = "and they were not recorded: --record FILE would keep them."
    if records:
        how = f"which are recorded: qtui lab underflow --resume '{record}' goes on."
        assert [job.job for job in read_lab_recording(record).jobs] == ["fp32"]
    said = f"qtui: SIGTERM ended the experiment underflow after 1 of 2 parts, {how}"
    assert err.splitlines() == [said]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("deed",), "There is no experiment 'deed'; there are underflow, survive"),
        (("underflow", "--lr", "fast"), "--lr takes a number, not 'fast'"),
        (("underflow", "--lr", "nan"), "--lr is between 0 and 1; nan is not"),
        (("underflow", "--store", "int3"), "--store has no 'int3'; it takes bf16"),
        (("qat", "--seeds", "1,1"), "--seeds names a value twice"),
        (("underflow", "--salt", "1"), "No such option '--salt'"),
        pytest.param(("survive", "nowhere.gguf"), "nowhere.gguf", marks=pytest.mark.slow),
        (("underflow", "--resume", "nowhere.jsonl"), "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(qtui, options, says):
    done = qtui("lab", *options)
    assert done.returncode in (2, 3)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
