"""`qtui eval` as a user runs it: its report, recording and going on, refusals, and the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode

import numpy as np
import pytest

from qtui.ending import Ended
from qtui.engine.client import EngineLost
from qtui_core.codec import to_plain
from qtui_core.evaluation.results import (
    Candidate,
    EvaluatedText,
    EvaluationBegun,
    PartScored,
    read_evaluation_recording,
)

ROWS = ("scheme", "bits_per_parameter", "bytes", "kl_mean", "kl_stderr", "kl_median", "kl_p999",
        "loss", "perplexity", "top1_agreement")  # fmt: skip


class ScriptedEngine:
    """In place of the engine: tells an evaluation of two batches of two windows, and is interrupted
    after `stop` parts, or ends with another error."""

    def __init__(self) -> None:
        self.stop = 99
        self.error: BaseException = KeyboardInterrupt()
        self.digest = "d"
        self.asked: list[tuple[int, int]] = []

    def __call__(self, model, method, params, heard) -> None:
        settings = params["settings"]
        given = [each.name for each in settings.given]
        names = ("original", *map(str, settings.schemes), *given)
        text = EvaluatedText("a text", "a byte a token", 900, self.digest, 8, 3, 4)
        begun = EvaluationBegun(
            model, "LlamaForCausalLM", 1000, 2000, settings, text, tuple(map(Candidate, names)),
            (2, 2), "CPU", versions={"torch": "2"},
        )  # fmt: skip
        heard(0.0, {})
        heard(0.0, to_plain({"doing": "original", "begun": begun}))
        told = 0
        for batch in range(2):
            for number in range(len(names)):
                if (batch, number) in params["done"]:
                    continue
                self.asked.append((batch, number))
                heard(0.5, to_plain({"doing": names[number], "part": part(batch, number)}))
                told += 1
                if told == self.stop:
                    raise self.error


def part(batch: int, number: int) -> PartScored:
    def text(values, dtype):
        return b64encode(np.asarray(values, dtype).tobytes()).decode()

    divergence = number * np.linspace(0.001, 0.002 + 0.001 * batch, 6)
    return PartScored(
        batch, number, 2000 // (1 + number), text(np.ones(6), "<f4"),
        text(divergence, "<f4") if number else "", text(np.ones(6), "|u1"), 0.5,
    )  # fmt: skip


@pytest.fixture
def engine(monkeypatch):
    scripted = ScriptedEngine()
    monkeypatch.setattr("qtui.cli.evaluation_run.ask_engine", scripted)
    return scripted


def test_json_has_the_rows_of_the_design(qtui, engine):
    done = qtui("eval", "demo", "--schemes", "nf4,int8", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert {"model", "text", "rows", "conclusion"} <= set(data)
    assert data["model"]["id"] == "demo"
    assert {k: data["text"][k] for k in ("tokens", "windows", "window")} == {
        "tokens": 12, "windows": 4, "window": 8,
    }  # fmt: skip
    assert [row["scheme"] for row in data["rows"]] == ["original", "nf4:block64", "int8:row"]
    for row in data["rows"]:
        assert set(ROWS) <= set(row)
    assert data["rows"][1]["kl_mean"] == pytest.approx(0.00175)
    assert data["conclusion"] in " ".join(
        qtui("eval", "demo", "--schemes", "nf4,int8").stdout.split()
    )


def test_every_face_shows_the_rows_and_the_picture(qtui, engine, tmp_path):
    for name in ("r.md", "r.html"):
        done = qtui("eval", "demo", "--schemes", "nf4,int8", "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert "nf4:block64" in (tmp_path / name).read_text()
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == page.count("</svg>") >= 1
    assert "KL divergence against bits" in page


def test_an_interrupted_evaluation_reports_what_it_has_and_is_gone_on_with(qtui, engine, tmp_path):
    first, second = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    whole = json.loads(qtui("eval", "demo", "--schemes", "nf4,int8", "--json").stdout)
    engine.stop, engine.asked = 4, []
    done = qtui("eval", "demo", "--schemes", "nf4,int8", "--record", first)
    assert done.returncode == 130
    assert "Stopped after 2 of 4 windows." in done.stdout
    assert "interrupted" in done.stderr
    assert len(read_evaluation_recording(first).parts) == 4
    assert "Stopped after 2 of 4" in qtui("replay", first).stdout
    engine.stop, engine.asked = 99, []
    done = qtui("eval", "demo", "--resume", first, "--record", second, "--json")
    assert done.returncode == 0, done.stderr
    assert engine.asked == [(1, 1), (1, 2)]
    assert json.loads(done.stdout) == whole
    replayed = json.loads(qtui("replay", second, "--json").stdout)
    assert replayed["rows"] == whole["rows"]
    assert replayed["conclusion"] == whole["conclusion"]


def test_what_was_found_before_the_engine_died_is_reported(qtui, engine):
    engine.error, engine.stop = EngineLost("The engine was killed."), 3
    done = qtui("eval", "demo", "--schemes", "nf4,int8")
    assert done.returncode == 1
    assert "The engine was killed." in done.stderr
    assert "Stopped after 2 of 4 windows." in done.stdout


def test_a_signal_that_ended_an_evaluation_ends_the_program_after_its_report(
    qtui, engine, monkeypatch
):
    by = []
    monkeypatch.setattr("qtui.cli.exits.end_by_signal", by.append)
    engine.error, engine.stop = Ended(signal.SIGTERM), 3
    done = qtui("eval", "demo", "--schemes", "nf4,int8")
    assert "Stopped after 2 of 4 windows." in done.stdout
    assert by == [engine.error]


def test_a_recording_of_something_else_is_not_gone_on_with(qtui, engine, tmp_path):
    file = str(tmp_path / "a.jsonl")
    assert qtui("eval", "demo", "--schemes", "nf4", "--record", file).returncode == 0
    for args, words in (
        (("--schemes", "int8"), "with another --schemes"),
        (("--windows", "3"), "with another --windows"),
    ):
        done = qtui("eval", "demo", "--resume", file, *args)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    same = qtui("eval", "demo", "--resume", file, "--schemes", "nf4:block64")
    assert same.returncode == 0, same.stderr
    engine.digest = "another"
    done = qtui("eval", "demo", "--resume", file)
    assert done.returncode == 2
    assert "of another text" in done.stderr


def test_gates_read_the_rows_by_name(qtui, engine, tmp_path):
    args = ("eval", "demo", "--schemes", "nf4,int8")
    assert qtui(*args, "--fail-if", "kl>0.01").returncode == 0
    fell = qtui(*args, "--fail-if", "kl>0.002")
    assert fell.returncode == 1
    assert "int8:row" in fell.stderr
    before = tmp_path / "before.json"
    before.write_text(qtui(*args, "--json").stdout)
    assert qtui(*args, "--baseline", str(before)).returncode == 0


def test_what_cannot_be_is_refused_in_a_sentence(qtui, tmp_path):
    short = tmp_path / "empty.txt"
    short.write_text(" ")
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    for args, code, words in (
        (("demo", "--schemes", "int99"), 2, "int99"),
        (("demo", "--schemes", ","), 2, "--schemes is empty"),
        (("demo", "--activations", "int8:model"), 2, "int8:tensor"),
        (("demo", "--windows", "0"), 2, "--windows is 0; it takes 1 or more"),
        (("demo", "--window", "4"), 2, "--window is 4"),
        (("demo", "--text", str(tmp_path / "none.txt")), 2, "is no file"),
        (("demo", "--text", str(short)), 2, "is empty"),
        (("demo", "--assignment", str(tmp_path / "none.json")), 2, "cannot be read"),
        (("demo", "--assignment", "~no-such-user/a.json"), 2, "cannot be read"),
        (("demo", "--against", "demo", "--keep", "lm_head*"), 2, "give --schemes too"),
        ((str(tmp_path / "nothing"),), 3, "There is no file or folder"),
        (("demo", "--against", str(tmp_path / "nothing")), 3, "There is no file or folder"),
        (("demo", "--resume", str(short)), 2, "no recording of an evaluation"),
        (("demo", "--resume", str(tmp_path / "pipe")), 2, "It is empty"),
        (("demo", "--assignment", str(tmp_path / "pipe")), 2, "has no assignment"),
        (("demo", "--baseline", str(tmp_path / "pipe")), 2, "is not valid JSON"),
        (("demo", "--fail-if", "speed>3"), 2, "speed"),
    ):
        done = qtui("eval", *args)
        assert done.returncode == code, (args, done.stderr)
        assert words in done.stderr, (args, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_cuda_where_there_is_none_is_exit_code_4(qtui):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = qtui("eval", "demo", "--device", "cuda")
    assert done.returncode == 4
    assert "--device cpu" in done.stderr


@pytest.mark.slow
def test_the_demo_is_evaluated_against_itself_and_quantized(qtui, tmp_path):
    report = tmp_path / "assignment.json"
    args = ("inspect", "demo", "--sensitivity", "--objective", "weights", "--no-judge",
            "--schemes", "nf4:dq,int8")  # fmt: skip
    assert qtui(*args, "--budget", "4.5", "-o", str(report)).returncode == 0
    rule = tmp_path / "rule.json"
    names = [row["tensor"] for row in json.loads(report.read_text())["sensitivity"]["assignment"]]
    rule.write_text(json.dumps(dict.fromkeys(names, "int8")))
    done = qtui(
        "eval", "demo", "--schemes", "bf16,int8,nf4,int2", "--activations", "int8:token",
        "--assignment", str(report), "--assignment", str(rule), "--against", "demo",
        "--windows", "12", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    rows = {row["scheme"]: row for row in data["rows"]}
    assert rows["bf16"]["kl_mean"] == rows["demo"]["kl_mean"] == 0.0
    assert rows["demo"]["bytes"] == data["model"]["bytes"]
    kl = {name: row["kl_mean"] for name, row in rows.items()}
    assert (
        0 < kl["int8:row"] < kl["int8:row + int8:token"] < kl["assignment.json"] < kl["nf4:block64"]
    )
    assert kl["nf4:block64"] < 0.01 < 0.3 < kl["int2:group64"]
    assignment = json.loads(report.read_text())["sensitivity"]
    assert rows["assignment.json"]["bytes"] == assignment["bytes"]
    assert kl["rule.json"] == kl["int8:row"]
    assert rows["original"]["loss"] < rows["int2:group64"]["loss"]
    assert "bits per parameter or fewer" in data["conclusion"]


@pytest.mark.slow
def test_ctrl_c_ends_it_within_a_second_and_the_report_is_there():
    command = [sys.executable, "-m", "qtui", "eval", "demo", "--windows", "400"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "int8:row, batch 1" not in process.stderr.readline():
            assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        print(f"{time.monotonic() - began:.2f} s to its end")
    assert process.returncode == 130
    assert "interrupted" in err
    sentence = "had read 16 of 400 windows. int8:row, at 8.11 bits per parameter"
    assert sentence in " ".join(out.split())
