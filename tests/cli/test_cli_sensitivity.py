"""`qtui inspect --sensitivity` as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file


def test_json_assigns_within_the_budget(qtui):
    args = ("inspect", "demo", "--sensitivity", "--schemes", "nf4:dq,int8,int3", "--budget", "4.5")
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
    done = qtui("inspect", "demo", "--sensitivity", "--schemes", "nf4,int8", "-o", str(target))
    assert done.returncode == 0, done.stderr
    page = target.read_text()
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "polyline" in page
    assert "int8:row</title>" in page


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "4"), "--sensitivity"),
        (("--sensitivity", "--headers"), "--headers"),
        (("--sensitivity", "--budget", "1MB"), "cannot be met"),
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
    done = qtui("inspect", "demo", "--sensitivity", "--budget", "20", "--schemes", "int4", "--json")
    conclusion = json.loads(done.stdout)["conclusion"]
    assert conclusion.endswith("keeps every value exactly with every tensor as stored.")


@pytest.mark.parametrize(
    ("args", "words"),
    [(("--budget", "much"), "is no budget"), (("--calibration", "/"), "a folder")],
)
def test_inputs_are_looked_at_before_the_model_is(qtui, tmp_path, args, words):
    # The model is missing too: what is complained of shows what came first.
    done = qtui("inspect", str(tmp_path / "nowhere"), "--sensitivity", *args)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.slow
def test_calibration_weighs_by_what_flows_through_the_layers(qtui, tmp_path):
    """The error of the outputs, against a forward pass of transformers with hooks of this test."""
    import torch
    from transformers import AutoModelForCausalLM

    from qtui_core.models.demo import HELD_BACK_TEXT
    from qtui_core.quant import Scheme, quantize

    text = tmp_path / "text.txt"
    text.write_bytes(HELD_BACK_TEXT.read_bytes()[:512])
    done = qtui(
        "inspect", "demo", "--sensitivity", "--schemes", "nf4,int8", "--full", "--json",
        "--calibration", str(text), "--budget", "4.6",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["sensitivity"]
    assert found["weighed_by"] == "outputs"
    assert found["weighed_by_weights_alone"] == ["model.embed_tokens.weight"]

    model = AutoModelForCausalLM.from_pretrained(HELD_BACK_TEXT.parent, dtype=torch.bfloat16)
    squares: dict[str, list[np.ndarray]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(
                lambda _, args, out, name=name: squares.setdefault(name, []).append(
                    args[0]
                    .detach()
                    .float()
                    .numpy()
                    .astype(np.float64)
                    .reshape(-1, args[0].shape[-1])
                )
            )
    # The first half of the text is calibrated on.
    ids = torch.frombuffer(bytearray(text.read_bytes()[:256]), dtype=torch.uint8)
    with torch.inference_mode():
        model(input_ids=ids.long()[None])
    weights = dict(model.named_parameters())
    layers = len(found["assignment"])
    for entry in found["assignment"]:
        name = entry["tensor"].removesuffix(".weight")
        if entry["scheme"] is None or name not in squares:
            continue
        moments = (np.concatenate(squares[name]) ** 2).mean(axis=0)
        w = weights[entry["tensor"]].detach().float().numpy()
        wrong = w.astype(np.float64) - quantize(w, Scheme.parse(entry["scheme"])).dequantize()
        relative = (wrong**2 @ moments).sum() / (w.astype(np.float64) ** 2 @ moments).sum()
        assert entry["relative_error"] * layers == pytest.approx(relative, rel=2e-3)


def test_a_calibration_text_that_is_none_is_refused(qtui, tmp_path):
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text("")
    binary.write_bytes(b"a\0b")
    for path, words in ((empty, "empty"), (binary, "binary"), (tmp_path / "no.txt", "no.txt")):
        done = qtui(
            "inspect", "demo", "--sensitivity", "--schemes", "nf4", "--calibration", str(path)
        )
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
