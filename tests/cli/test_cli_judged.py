"""`qtui inspect --sensitivity` holds the assignment against the model, as a user sees it."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from dataclasses import replace

import numpy as np
import pytest
from test_cli_eval import ScriptedEngine, part

from qtui_core.errors import ModelError
from qtui_core.gates import GATED

COMMAND = ("inspect", "demo", "--sensitivity", "--objective", "weights",
           "--schemes", "nf4:dq,int8", "--tensors", "*[md]_[hp]*[ad].weight")  # fmt: skip


@pytest.fixture
def engine(monkeypatch):
    """Candidates are the farther from the original, the later they come, or the nearer if it goes
    `backwards`; each takes fewer bytes than the one before."""
    scripted = ScriptedEngine()
    scripted.backwards = False

    def part_of(batch, number):
        place = 9 - number if scripted.backwards else number
        divergence = place * (1e-3 + 1e-5 * np.arange(6)).astype("<f4")
        text = b64encode(divergence.tobytes()).decode() if number else ""
        return replace(part(batch, number), divergence=text)

    monkeypatch.setattr("test_cli_eval.part", part_of)
    monkeypatch.setattr("qtui.cli.evaluation_run.ask_engine", scripted)
    return scripted


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_every_face_has_the_rows_and_what_won(qtui, engine, tmp_path):
    done = qtui(*COMMAND, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    found = data["sensitivity"]["judged"]
    names = ["the assignment", "nf4:dq with lm_head in int8", "nf4:block64:dq", "int8:row"]
    assert [row["scheme"] for row in found["rows"]] == names
    assert [row["kind"] for row in found["rows"]] == ["assignment", "rule", "uniform", "uniform"]
    assert found["assignment"] == found["rows"][0]
    for row in found["rows"]:
        assert {"bits_per_parameter", "bytes", "kl_mean", "kl_stderr", "kl_difference",
                "kl_difference_stderr"} <= set(row)  # fmt: skip
    assert found["rows"][1]["kl_difference"] == pytest.approx(0.001025)
    assert found["recommended"] == "the assignment"
    assert found["text"]["windows"] == 4
    assert data["sensitivity"]["not_judged_because"] is None
    assert found["conclusion"] == data["conclusion"]
    text = squeezed(qtui(*COMMAND).stdout)
    assert text.endswith(found["conclusion"])
    for suffix in ("md", "html"):
        file = tmp_path / f"report.{suffix}"
        assert qtui(*COMMAND, "-o", str(file)).returncode == 0
        page = file.read_text()
        assert "Held against the model" in page
        assert names[1] in page.replace("\\", "")
        assert "the assignment is the best of its bytes" in page


def test_no_judge_says_so_with_the_command_that_does(qtui, engine, tmp_path):
    file = tmp_path / "a report.json"
    assert qtui(*COMMAND, "--no-judge", "-o", str(file)).returncode == 0
    data = json.loads(file.read_text())
    assert data["sensitivity"]["judged"] is None
    assert data["sensitivity"]["not_judged_because"] == "--no-judge leaves it out"
    assert engine.asked == []
    said = data["conclusion"]
    assert "Nothing held this against the model (--no-judge leaves it out): `qtui eval" in said
    command = shlex.split(re.findall("`(.*)`", said)[0])
    assert command[:3] == ["qtui", "eval", "demo"]
    assert command[3:5] == ["--assignment", str(file)]
    done = qtui(*command[1:])  # that command runs
    assert done.returncode == 0, done.stderr
    without = qtui(*COMMAND, "--no-judge").stdout
    assert "--assignment FILE --schemes" in squeezed(without)
    assert squeezed(without).endswith("does, with FILE as --json -o FILE writes it.")


def test_a_model_that_takes_long_or_cannot_run_is_not_judged_unasked(qtui, engine, monkeypatch):
    monkeypatch.setattr("qtui.cli.held_against.MOST_PARAMETERS", 1_000_000)
    said = squeezed(qtui(*COMMAND).stdout)
    assert "(4.56 M parameters take longer than a minute or so: --judge does it" in said
    assert engine.asked == []
    assert "the best of its bytes" in squeezed(qtui(*COMMAND, "--judge").stdout)
    monkeypatch.undo()

    def refuse(*_):
        raise ModelError("It has no tokenizer.")

    monkeypatch.setattr("qtui.cli.evaluation_run.ask_engine", refuse)
    done = qtui(*COMMAND)
    assert done.returncode == 0
    said = squeezed(done.stdout)
    assert said.endswith("Nothing held this against the model (It has no tokenizer).")
    asked = qtui(*COMMAND, "--judge")
    assert asked.returncode == 1  # what was asked for was not done, and the report is there
    assert squeezed(asked.stdout) == said


def test_ctrl_c_leaves_the_report(qtui, engine):
    engine.stop = 6
    done = qtui(*COMMAND, "--fail-if", "kl>0")
    assert done.returncode == 130
    assert "Stopped after 2 of 4 windows. On 2 held-out windows" in squeezed(done.stdout)
    engine.stop = 1
    done = qtui(*COMMAND, "--json")
    assert done.returncode == 130
    assert "Stopped before every candidate" in json.loads(done.stdout)["conclusion"]


def test_gates_speak_of_the_assignment_and_ask_for_its_judgement(qtui, engine, monkeypatch):
    monkeypatch.setattr("qtui.cli.held_against.MOST_PARAMETERS", 1_000_000)
    done = qtui(*COMMAND, "--fail-if", "kl>0.001")
    assert done.returncode == 1
    assert "assignment has kl_mean 0.001025, above the limit 0.001 (" in done.stderr
    done = qtui(*COMMAND, "--fail-if", "kl>0.002", "--json")
    assert done.returncode == 0
    (rows,) = [r for r in GATED["inspect --sensitivity"].rows if r.name == "judged"]
    ((_, row),) = rows.rows_in(json.loads(done.stdout))
    assert set(rows.figures) <= set(row)
    done = qtui(*COMMAND, "--fail-if", "kl>0.002", "--no-judge")
    assert done.returncode == 1
    assert "no row of judged" in done.stderr


def test_recipes_of_an_assignment_that_lost_say_so(qtui, engine, tmp_path):
    assert "recipes are of" not in qtui(*COMMAND, "--export", "vllm", cwd=tmp_path).stdout
    engine.backwards = True
    done = qtui(*COMMAND, "--export", "vllm=second.json", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    rule = data["sensitivity"]["judged"]["recommended"]
    assert "the assignment is worse than" in data["conclusion"]
    assert data["conclusion"].endswith(f"The recipes are of the assignment, not of {rule}.")


def test_judge_is_for_sensitivity(qtui):
    for option in ("--judge", "--no-judge"):
        done = qtui("inspect", "demo", option)
        assert done.returncode == 2
        assert f"{option} is for --sensitivity" in done.stderr
