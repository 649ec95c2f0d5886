"""`qtui inspect A --against B` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from gguf_models import write_gguf
from packed_models import gptq_layer, save_model, under

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "hidden_size": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(original, its GPTQ version, its GGUF version)."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    name = "model.layers.0.mlp.up_proj"
    weight, tensors = gptq_layer(rng, 64, 128, 4, 32, v2=True)
    step = tensors["scales"].astype(np.float64).repeat(32, axis=0).T
    x = (weight + step * rng.uniform(-0.5, 0.5, weight.shape)).astype(np.float32)
    norm = np.ones(64, np.float32)
    plain = {f"{name}.weight": x, "model.norm.weight": norm, "model.only_a.weight": norm}
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False,
                "checkpoint_format": "gptq_v2"}  # fmt: skip
    packed = under(name, tensors) | {"model.norm.weight": norm, "model.[b].weight": norm}
    return (
        save_model(folder / "original", plain, **CONFIG),
        save_model(folder / "gptq", packed, settings, **CONFIG),
        write_gguf(folder / "m.gguf", {n: w for n, w in plain.items() if "only" not in n}, CONFIG),
    )


def test_json_has_every_key_of_the_schema(qtui, models):
    original, packed, _ = models
    done = qtui("inspect", str(original), "--against", str(packed), "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert set(data) == {"schema_version", "model", "sample", "against", "conclusion"}
    against = data["against"]
    assert set(against) == {
        "model", "notes", "relative_mse", "sqnr_db", "bits_per_parameter",
        "model_bits_per_parameter", "plain_rounding", "identical", "tensors", "only_in_model",
        "only_in_against", "other_shapes", "not_read",
    }  # fmt: skip
    assert against["model"]["id"] == str(packed)
    assert against["identical"] == 1
    assert against["only_in_model"] == ["model.only_a.weight"]
    assert against["only_in_against"] == ["model.[b].weight"]
    worst = against["tensors"][0]
    assert set(worst) == {
        "name", "shape", "parameters", "sampled_parameters", "stored", "against_stored",
        "identical", "nonfinite", "mse", "relative_mse", "sqnr_db", "max_abs_error",
        "max_abs_error_index", "mean_shift", "cosine", "plain_rounding", "became_nonfinite",
        "read_as", "matrix",
    }  # fmt: skip
    assert worst["name"] == "model.layers.0.mlp.up_proj.weight"
    assert worst["shape"] == [64, 128]
    assert worst["against_stored"]["method"] == "GPTQ 4 bits group32"
    assert worst["plain_rounding"]["scheme"] == "int4:group32:asym"


@pytest.mark.parametrize("format", ["text", "markdown", "html"])
@pytest.mark.parametrize("ascii", [False, True])
def test_every_face_ends_in_the_sentence(qtui, models, format, ascii):
    original, packed, _ = models
    args = ["--format", format, *(["--ascii"] if ascii else [])]
    done = qtui("inspect", str(original), "--against", str(packed), *args)
    assert done.returncode == 0, done.stderr
    assert "dB of" in done.stdout
    if ascii:
        done.stdout.encode("ascii")
    if format == "html":
        assert "model.[b].weight" in done.stdout
    else:
        assert "1 tensor is identical" in done.stdout


def test_gguf_on_the_command_line(qtui, models):
    original, _, path = models
    done = qtui("inspect", str(original), "--against", str(path))
    assert done.returncode == 0, done.stderr
    assert "GGUF Q8_0" in done.stdout
    done = qtui("inspect", str(path))
    assert done.returncode == 0, done.stderr
    assert "hold GGUF blocks" in done.stdout or "holds GGUF blocks" in done.stdout
    done = qtui("inspect", str(path), "--headers", "--json")
    names = {t["name"] for t in json.loads(done.stdout)["tensors"]}
    assert names == {"blk.0.ffn_up.weight", "output_norm.weight"}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--headers"], 2, "--headers reads none"),
        (["--schemes", "nf4"], 2, "--schemes other ones"),
        (["--sensitivity"], 2, "is of one"),
        (["--tensors", "*.nothing"], 2, "Names look like"),
    ],
)
def test_what_does_not_go_with_it_is_refused(qtui, models, args, code, said):
    done = qtui("inspect", str(models[0]), "--against", str(models[1]), *args)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_models_that_share_nothing_or_are_not_there(qtui, models, tmp_path):
    other = save_model(tmp_path / "other", {"conv.weight": np.ones((3, 3), np.float32)})
    done = qtui("inspect", str(models[0]), "--against", str(other))
    assert done.returncode == 3
    assert "no tensor in common" in done.stderr
    done = qtui("inspect", str(models[0]), "--against", str(tmp_path / "gone"))
    assert done.returncode == 3
    config = tmp_path / "other" / "config.json"
    done = qtui("inspect", str(models[0]), "--against", str(config))
    assert done.returncode == 3
    assert "no weights" in done.stderr


def test_formats_that_need_no_torch_load_none(models):
    """GPTQ, GGUF and unquantized weights are decoded without torch."""
    code = (
        "import sys; from qtui.cli import main\n"
        f"for second in {[str(each) for each in models]}:\n"
        f"    sys.argv = ['qtui', 'inspect', {str(models[0])!r}, '--against', second]\n"
        "    try: main()\n    except SystemExit as done: assert not done.code\n"
        "assert not {'torch', 'transformers', 'textual'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_that_float32_does_not_hold_are_called_so(qtui, tmp_path):
    a = save_model(tmp_path / "a", {"w": np.full((4, 64), 1e300)})
    done = qtui("inspect", str(a), "--against", str(a), "--json")
    assert "256 values are NaN, infinite or beyond the range of float32" in done.stdout
