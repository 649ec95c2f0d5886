"""`qtui inspect BASE --adapter LORA`: the four faces, gates, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from adapter_models import lora, write_adapter
from every import every
from packed_models import save_model

from qtui_core.errors import ModelError

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def merged(tmp_path):
    """The paths of a base and of an adapter."""
    values = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    weights = {f"{Q}.weight": values, "lm_head.weight": values}
    base = save_model(tmp_path / "base", weights, model_type="llama")
    return str(base), str(write_adapter(tmp_path / "lora", lora(Q, 64, 128)))


def test_all_faces_end_in_the_sentence(qtui, merged, tmp_path):
    base, adapter = merged
    asked = ("inspect", base, "--adapter", adapter, "--merge", "nf4:dq,int4")
    found = json.loads(qtui(*asked, "--json").stdout)
    assert [row["name"] for row in found["merges"]] == ["nf4:block64:dq", "int4:group64"]
    assert found["adapter"]["kind"] == "LoRA, rank 4, alpha 8, 1 module"
    assert found["tensors"][0]["merges"][0]["kept"] == found["merges"][0]["kept"]
    for face in ("text", "markdown", "html"):
        said = " ".join(qtui(*asked, "--format", face).stdout.split())
        assert "of the update is left in the weights" in said, face
        assert "int4:group64" in said, face
    for ending in ("json", "md", "html"):
        file = tmp_path / f"report.{ending}"
        assert qtui(*asked, "-o", str(file)).returncode == 0
        assert file.read_text()


def test_the_training_scheme_adds_the_second_order(qtui, merged):
    base, adapter = merged
    asked = ("inspect", base, "--adapter", adapter, "--merge", "nf4:dq", "--trained-on", "nf4:dq")
    found = json.loads(qtui(*asked, "--json").stdout)
    assert [row["onto"] for row in found["merges"]] == ["", "nf4:block64:dq"]
    assert found["merges"][0]["apart_error_over_update"] == 0


def test_gates_hold_what_is_left(qtui, merged):
    base, adapter = merged
    asked = ("inspect", base, "--adapter", adapter, "--merge", "nf4")
    assert qtui(*asked, "--fail-if", "kept<0.1").returncode == 0
    fallen = qtui(*asked, "--fail-if", "error_over_update>0.0001", "--fail-if", "tensors.kept>0")
    assert fallen.returncode == 1
    assert "2 rows failed" in fallen.stderr


def test_what_does_not_go_together_is_refused(qtui, merged):
    base, adapter = merged
    cases = {
        "--merge is for --adapter": ("--merge", "nf4"),
        "--trained-on is for --adapter": ("--trained-on", "nf4"),
        "--headers asks for another report": ("--adapter", adapter, "--headers"),
        "--against asks for another report": ("--adapter", adapter, "--against", base),
        "--tensors asks for another report": ("--adapter", adapter, "--tensors", "*"),
        "--method asks for another report": ("--adapter", adapter, "--method", "lora"),
        "with --adapter it is --merge": ("--adapter", adapter, "--schemes", "nf4"),
        "--merge is empty": ("--adapter", adapter, "--merge", ","),
        "'int9'": ("--adapter", adapter, "--merge", "int9"),
        "is no adapter of peft": ("--adapter", base),
        "not a hub id": ("--adapter", "./nowhere"),
    }

    def check(words, options):
        done = qtui("inspect", base, *options)
        assert done.returncode == 2 or "adapter" in options[0]
        assert done.returncode
        assert words in done.stderr
        assert "Traceback" not in done.stderr

    every(cases.items(), check)


@pytest.mark.parametrize(
    ("ending", "code", "why"),
    [
        (KeyboardInterrupt(), 130, "it was interrupted"),
        (ModelError("It has no tokenizer."), 3, "It has no tokenizer"),
    ],
)
def test_what_was_measured_of_the_weights_is_printed(
    qtui, merged, tmp_path, monkeypatch, ending, code, why
):
    def end(*_):
        raise ending

    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat.")
    monkeypatch.setattr("qtui.cli.evaluation_run.run_to_end", end)
    base, adapter = merged
    done = qtui("inspect", base, "--adapter", adapter, "--text", str(text), "--json",
                "--fail-if", "kept>0")  # fmt: skip
    assert done.returncode == code
    said = json.loads(done.stdout)["conclusion"]
    assert "of the update is left" in said
    assert said.endswith(f"What the model loses on the text is unknown ({why}).")
    assert "--text" not in said


@pytest.mark.slow
def test_a_text_measures_what_the_model_loses(qtui, tmp_path):
    """Trained on the demo in nf4:dq, the adapter kept apart from that base is the trained model."""
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat, and then the dog ran far away. " * 20)
    parts = {}
    for layer in range(6):
        parts |= lora(f"model.layers.{layer}.mlp.up_proj", 704, 256, seed=layer)
    adapter = str(write_adapter(tmp_path / "lora", parts))
    asked = ("--adapter", adapter, "--merge", "nf4:dq", "--trained-on", "nf4:dq")
    done = qtui("inspect", "demo", *asked, "--text", str(text), "--json",
                "--fail-if", "kl>-1")  # fmt: skip
    assert done.returncode == 1
    assert "2 rows failed" in done.stderr
    found = json.loads(done.stdout)
    name = "nf4:block64:dq"
    merged, apart = found["divergence"]["merged"], found["divergence"]["apart"]
    assert [row["name"] for row in merged] == [name, f"{name} onto {name}"]
    assert [row["kl_mean"] for row in apart] == [0]
    assert merged[0]["kl_mean"] == merged[0]["over_apart"] > 0
    assert merged[0]["bytes"] < apart[0]["bytes"]
    assert found["divergence"]["base_kl_mean"] > 0
