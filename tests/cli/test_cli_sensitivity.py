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
        (("--sensitivity", "--objective", "kl", "--calibration", "a"), "--objective kl is given"),
        (("--sensitivity", "--text", "a", "--calibration", "a"), "and --text is given"),
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
    assert json.loads(done.stdout)["conclusion"].startswith("3 values that are NaN or infinite")


def test_an_assignment_that_keeps_everything_says_so(qtui):
    done = qtui(*CHOSEN, "--budget", "20", "--schemes", "int4", "--json")
    conclusion = json.loads(done.stdout)["conclusion"]
    assert conclusion.endswith("keeps every value exactly with every tensor as stored.")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "much"), "is no budget"),
        (("--calibration", "/"), "a folder"),
        (("--text", "/"), "a folder"),
    ],
)
def test_inputs_are_looked_at_before_the_model_is(qtui, tmp_path, args, words):
    # The model is missing too; the complaint shows what is checked first.
    done = qtui("inspect", str(tmp_path / "nowhere"), "--sensitivity", *args)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.slow
def test_outputs_decibels_are_those_of_a_forward_pass_with_hooks(qtui, tmp_path):
    """Every layer under several schemes, and the means in the report, against transformers with
    hooks of this test."""
    import torch
    from transformers import AutoModelForCausalLM

    from qtui_core.activations.layer_inputs import layer_inputs
    from qtui_core.inspection.layer_errors import layer_errors
    from qtui_core.loading.text import read_text
    from qtui_core.models import open_model
    from qtui_core.models.demo import HELD_BACK_TEXT
    from qtui_core.quant import Scheme, quantize

    schemes = [str(Scheme.parse(s)) for s in ("nf4:dq", "int8", "mxfp4", "ternary", "int2")]
    text = tmp_path / "text.txt"
    text.write_bytes(HELD_BACK_TEXT.read_bytes()[:512])
    done = qtui(
        *CHOSEN[:-2], "--schemes", ",".join(schemes), "--full", "--json",
        "--calibration", str(text), "--budget", "4.6",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["sensitivity"]
    assert found["weighed_by"] == "output"
    assert found["weighed_by_weights_alone"] == ["model.embed_tokens.weight"]
    assert found["tokens"] == [256, 256]

    model = AutoModelForCausalLM.from_pretrained(HELD_BACK_TEXT.parent, dtype=torch.bfloat16)
    seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(
                lambda _, args, out, name=name: seen.update(
                    {f"{name}.weight": (args[0][0].double().numpy(), out[0].double().numpy())}
                )
            )
    # The first half of the text is used for calibration.
    ids = torch.frombuffer(bytearray(text.read_bytes()[:256]), dtype=torch.uint8)
    with torch.inference_mode():
        model(input_ids=ids.long()[None])
    weights = {name: p.detach().float().numpy() for name, p in model.named_parameters()}

    def decibels(name: str, scheme: str) -> float:
        x, y = seen[name]
        w = weights[name]
        wrong = x @ (quantize(w, Scheme.parse(scheme)).dequantize() - w).T.astype(np.float64)
        return float(-10 * np.log10((wrong**2).sum() / (y**2).sum()))

    with open_model("demo") as source:
        inputs = layer_inputs(source, list(source.tensors), read_text(str(text)))
        layers = layer_errors(source, inputs, [Scheme.parse(s) for s in schemes], full=True)
    assert set(layers) == set(seen)
    off = {
        (name, scheme): -10 * np.log10(error) - decibels(name, scheme)
        for name, layer in layers.items()
        for scheme, error in zip(schemes, layer.relative_mse, strict=True)
    }
    assert {key: db for key, db in off.items() if abs(db) > 0.01} == {}
    for uniform in found["uniform"]:
        by_hand = [10 ** (-decibels(name, uniform["scheme"]) / 10) for name in seen]
        # The embedding is in no layer, so its weights count.
        w = weights["model.embed_tokens.weight"].astype(np.float64)
        y = quantize(w.astype(np.float32), Scheme.parse(uniform["scheme"])).dequantize()
        by_hand.append(((w - y) ** 2).sum() / (w**2).sum())
        expected = -10 * np.log10(np.mean(by_hand))
        assert uniform["sqnr_db"] == pytest.approx(expected, abs=0.01), uniform["scheme"]


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
    for asked in (("--objective", "kl"), ("--objective", "output"), ("--text", "README.md")):
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


def test_a_calibration_text_that_is_none_is_refused(qtui, tmp_path):
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text("")
    binary.write_bytes(b"a\0b")
    for path, words in ((empty, "empty"), (binary, "binary"), (tmp_path / "no.txt", "no.txt")):
        done = qtui(*CHOSEN[:-2], "--schemes", "nf4", "--calibration", str(path))
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
