"""`qtui inspect --sensitivity` as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from qtui_core.errors import ModelError

#: Without running the model, which takes seconds.
CHOSEN = ("inspect", "demo", "--sensitivity", "--no-judge", "--objective", "weights")


def test_json_assigns_within_the_budget(qtui):
    args = (*CHOSEN, "--schemes", "nf4:dq,int8,int3", "--budget", "4.5")
    done = qtui(*args, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    found = data["sensitivity"]
    assert found["exact"] in (True, False)
    assert found["bytes"] <= found["budget_bytes"] == int(4.5 * data["model"]["parameters"] / 8)
    assert found["relative_error_bound"] <= found["relative_error"]
    kept = sum(t["bytes"] for t in data["tensors"] if not t["errors"])
    assert found["bytes"] == kept + sum(a["bytes"] for a in found["assignment"])
    assert {a["scheme"] for a in found["assignment"]} <= {
        "nf4:block64:dq", "int8:row", "int3:group64", None,
    }  # fmt: skip
    errors = {(t["name"], e["scheme"]): e for t in data["tensors"] for e in t["errors"]}
    for entry in found["assignment"]:
        if entry["scheme"] is not None:
            relative = errors[entry["tensor"], entry["scheme"]]["relative_mse"]
            assert 0 < entry["relative_error"] < relative
    assert data["conclusion"].startswith("At 4.")


def test_html_draws_the_frontier(qtui, tmp_path):
    target = tmp_path / "report.html"
    done = qtui(*CHOSEN, "--schemes", "nf4,int8", "-o", str(target))
    assert done.returncode == 0, done.stderr
    page = target.read_text()
    assert page.count("<svg") == page.count("</svg>") > 0
    assert "polyline" in page
    assert "int8:row</title>" in page


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "4"), "--sensitivity"),
        (("--sensitivity", "--headers"), "--headers"),
        (("--sensitivity", "--objective", "weights", "--budget", "1MB"), "cannot be met"),
        (("--objective", "kl"), "is for --sensitivity"),
        (("--text", "a"), "is for --sensitivity"),
        (("--sensitivity", "--objective", "weights", "--text", "a"), "reads no --text"),
        (("--sensitivity", "--objective", "output"), "--objective kl measures"),
        (("--sensitivity", "--calibration", "a"), "and fisher estimates"),
        (("--sensitivity", "--schemes", "int4:model"), "int4:tensor"),
        (("--sensitivity", "--tensors", "*norm*"), "nothing to assign"),
    ],
)
def test_what_cannot_be_is_refused_in_words(qtui, args, words):
    done = qtui("inspect", "demo", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("fill", [0.0, float("nan"), float("inf")])
def test_matrices_without_a_value_to_weigh_are_refused(qtui, tmp_path, fill):
    path = tmp_path / "model.safetensors"
    save_file({"w": np.full((8, 64), fill, np.float32)}, path)
    done = qtui("inspect", str(path), "--sensitivity", "--schemes", "int4")
    assert done.returncode == 2
    assert "nothing to weigh" in done.stderr


def test_values_that_are_broken_are_told_before_the_advice(qtui, tmp_path):
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    x[0, :3] = np.nan
    path = tmp_path / "model.safetensors"
    save_file({"w": x}, path)
    done = qtui("inspect", str(path), "--sensitivity", "--schemes", "int4", "--json")
    assert json.loads(done.stdout)["conclusion"].startswith("3 values are NaN or infinite")


def test_an_assignment_that_keeps_everything_says_so(qtui):
    done = qtui(*CHOSEN, "--budget", "20", "--schemes", "int4", "--json")
    conclusion = json.loads(done.stdout)["conclusion"]
    assert conclusion.endswith("keeps every value exactly with 44 tensors as stored.")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "much"), "is no budget"),
        (("--text", "/"), "a folder"),
    ],
)
def test_inputs_are_looked_at_before_the_model_is(qtui, tmp_path, args, words):
    # The model is missing too; the complaint shows what is checked first.
    done = qtui("inspect", str(tmp_path / "nowhere"), "--sensitivity", *args)
    assert done.returncode == 2
    assert words in done.stderr


def test_what_nobody_asked_for_and_cannot_be_run_is_by_weights_and_says_why(
    qtui, tmp_path, monkeypatch
):
    def refuse(*_):
        raise ModelError("It does not run.")

    monkeypatch.setattr("qtui.cli.sensitivity.ask_engine", refuse)
    few = ("--no-judge", "--schemes", "nf4", "--tensors", "*head*")
    done = qtui("inspect", "demo", "--sensitivity", *few)
    assert done.returncode == 0, done.stderr
    assert "by weights because" in done.stdout
    assert "It does not run." in done.stdout
    for asked in (("--objective", "kl"), ("--text", "README.md")):
        (tmp_path / "README.md").write_text("text " * 99)
        done = qtui("inspect", "demo", "--sensitivity", *few, *asked, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (3, "qtui: It does not run.\n")
    path = tmp_path / "model.safetensors"
    save_file({"w": np.ones((8, 64), np.float32)}, path)
    data = json.loads(qtui("inspect", str(path), "--sensitivity", "--json").stdout)
    found = data["sensitivity"]
    assert found["weighed_by"] == "weights"
    assert found["because"] == "there is no config.json to run the model by"


@pytest.mark.slow
def test_by_divergences_of_the_model_itself(qtui, tmp_path):
    target = tmp_path / "r.json"
    few = ("--schemes", "nf4:dq,int8", "--tensors", "*.5.mlp.*", "--budget", "6", "--no-judge")
    done = qtui("inspect", "demo", "--sensitivity", *few, "-o", str(target))
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())["sensitivity"]
    assert (found["weighed_by"], found["because"]) == ("kl", "")
    assert found["read"].startswith("8 windows of 256 tokens of the first half of the built-in")
    assert found["kl_sum"] == pytest.approx(sum(row["kl"] for row in found["assignment"]))
    assert 0 < found["kl_sum_stderr"] < found["kl_sum"]
    page = tmp_path / "r.html"
    done = qtui("inspect", "demo", "--sensitivity", *few, "--objective", "kl", "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "KL of single tensors, summed, nats a token" in page.read_text()


def test_a_text_that_is_none_is_refused(qtui, tmp_path):
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text("")
    binary.write_bytes(b"a\0b")
    for path, words in ((empty, "empty"), (binary, "binary"), (tmp_path / "no.txt", "no.txt")):
        done = qtui(*CHOSEN[:-2], "--schemes", "nf4", "--text", str(path))
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
