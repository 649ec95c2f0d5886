"""`qtui lab`: the list, an experiment by name, its record, going on from it, and bad input."""

from __future__ import annotations

import json

import pytest

from qtui_core.lab.catalog import EXPERIMENTS
from qtui_core.lab.recording import read_lab_recording


def test_the_list_has_every_experiment_with_its_question_and_cost(qtui):
    done = qtui("lab")
    assert done.returncode == 0
    for row in EXPERIMENTS:
        assert row.name in done.stdout
        assert row.question in " ".join(done.stdout.split())
        assert qtui("lab", row.name, "--help").stdout.count(row.question) == 1
    listed = json.loads(qtui("lab", "--json").stdout)
    assert [row["name"] for row in listed["experiments"]] == [row.name for row in EXPERIMENTS]


def test_an_experiment_is_run_recorded_replayed_and_not_run_again(qtui, tmp_path):
    record = tmp_path / "dead.jsonl"
    done = qtui("lab", "dead", "--lr", "1e-4", "--record", str(record), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {row["term"]: row["judged"] for row in found["rows"]}["decay"] == "dead"
    assert "Weight decay does nothing in BF16" in found["verdict"]
    assert found["ended"] == "done"
    assert found["settings"]["lr"] == 1e-4
    assert "about" in done.stderr

    recording = read_lab_recording(record)
    assert recording.complaint == ""
    assert [job.job for job in recording.jobs] == list(recording.begun.jobs)
    replayed = json.loads(qtui("replay", str(record), "--json").stdout)
    assert replayed == found
    assert found["verdict"] in " ".join(qtui("replay", str(record)).stdout.split())

    again = qtui("lab", "dead", "--resume", str(record), "--json")
    assert again.returncode == 0, again.stderr
    resumed = json.loads(again.stdout)
    assert resumed["rows"] == found["rows"]
    assert resumed["seconds"] < found["seconds"]

    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(record.read_bytes().splitlines(keepends=True)[0])
    assert "stops before the first part" in qtui("replay", str(cut)).stderr
    for options, says in {
        ("dead", "--lr", "1e-3"): "was made with another --lr",
        ("ratchet",): "is a recording of dead",
    }.items():
        refused = qtui("lab", options[0], *options[1:], "--resume", str(record))
        assert refused.returncode == 2
        assert says in refused.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("deed",), "There is no experiment 'deed'; there are underflow, dead"),
        (("dead", "--lr", "fast"), "--lr takes a number, not 'fast'"),
        (("dead", "--lr", "nan"), "--lr is between 0 and 1; nan is not"),
        (("dead", "--store", "int3"), "--store has no 'int3'; it takes bf16"),
        (("ratchet", "--seeds", "1,1"), "--seeds names a value twice"),
        (("dead", "--salt", "1"), "No such option '--salt'"),
        (("survive", "nowhere.gguf"), "nowhere.gguf"),
        (("dead", "--resume", "nowhere.jsonl"), "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(qtui, options, says):
    done = qtui("lab", *options)
    assert done.returncode in (2, 3)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
