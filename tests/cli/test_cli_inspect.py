"""`qtui inspect` as a user runs it: real files, four output formats."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest
from lazy_imports import LazyImport
from safetensors.numpy import save_file

bnb = LazyImport("bitsandbytes.functional")
torch = LazyImport("torch")


def inspect(qtui, *args):
    done = qtui("inspect", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_json_has_every_key_of_the_schema(qtui, checkpoint):
    data = inspect(qtui, str(checkpoint), "--schemes", "nf4,int8")
    assert data["schema_version"] == 1
    assert data["model"]["architecture"] == "TestModel"
    assert data["model"]["parameters"] == 192 * 128 * 2 + 128 + 192
    assert set(data["model"]["dtypes"]) == {"F32", "F16"}
    assert [t["name"] for t in data["tensors"] if t["errors"]] == [
        "layers.0.down.weight",
        "layers.0.up.weight",
    ]
    up = next(t for t in data["tensors"] if t["name"] == "layers.0.up.weight")
    assert set(up) == {
        "name", "shape", "dtype", "parameters", "bytes", "sampled_parameters", "statistics",
        "outliers", "errors", "read_as", "matrix",
    }  # fmt: skip
    assert {"min", "max", "mean", "std", "absmax", "kurtosis"} <= set(up["statistics"])
    assert set(up["errors"][0]) == {
        "scheme", "bits_per_parameter", "mse", "relative_mse", "sqnr_db", "max_abs_error",
        "gaussian_relative_mse", "nonfinite", "saturated",
    }  # fmt: skip
    assert {"scheme", "bits_per_parameter", "bytes", "relative_mse", "sqnr_db"} <= set(
        data["schemes"][0]
    )
    assert data["memory"] is None


def test_tensors_option_selects_and_refuses_what_matches_nothing(qtui, checkpoint):
    data = inspect(qtui, str(checkpoint), "--tensors", "*.up.*", "--schemes", "nf4")
    assert [t["name"] for t in data["tensors"]] == ["layers.0.up.bias", "layers.0.up.weight"]
    done = qtui("inspect", str(checkpoint), "--tensors", "*.nothing")
    assert done.returncode == 2
    assert "*.nothing" in done.stderr
    assert "Traceback" not in done.stderr


class _Checked(HTMLParser):
    """Collects tags and everything that a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [v for k, v in attrs if k in ("src", "href") and v]


def test_html_is_one_self_contained_page(qtui, checkpoint, tmp_path):
    target = tmp_path / "report.html"
    done = qtui("inspect", str(checkpoint), "-o", str(target))
    assert (done.returncode, done.stdout) == (0, "")
    page = _Checked()
    page.feed(target.read_text())
    assert page.loads == []
    assert page.tags.count("script") == 1  # which sorts
    assert page.tags.count("table") >= 3


def test_the_four_faces_show_the_same_numbers(qtui, checkpoint):
    data = inspect(qtui, str(checkpoint), "--schemes", "nf4")
    faces = [
        qtui("inspect", str(checkpoint), "--schemes", "nf4", "--format", face).stdout
        for face in ("text", "markdown", "html")
    ]
    for face in faces:
        assert f"{data['schemes'][0]['sqnr_db']:.1f}" in face
        assert f"{data['schemes'][0]['bits_per_parameter']:.3f}" in face
        assert data["conclusion"][:30] in face.replace("\\_", "_")


def test_a_pipe_gets_no_escape_codes_and_unbroken_lines(qtui, checkpoint):
    done = qtui("inspect", str(checkpoint))
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert any(line.strip().startswith("layers.0.down.weight") for line in done.stdout.split("\n"))


def test_ascii_is_ascii(qtui, checkpoint):
    for face in ("text", "json"):
        done = qtui("inspect", str(checkpoint), "--ascii", "--format", face)
        assert done.stdout.isascii(), face


def test_a_narrow_encoding_does_not_break_the_report(qtui, checkpoint):
    done = qtui("inspect", str(checkpoint), env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_an_estimate_of_memory_is_there_where_it_was_asked_for(qtui):
    """Or where nothing in particular was; a report of schemes ends with its own tables."""
    of = ("demo", "--tensors", "*layers.0.mlp.up_proj*")
    assert inspect(qtui, *of, "--schemes", "nf4")["memory"]  # scripts rely on the key
    pages = {
        more: "Memory of a run" in qtui("inspect", *of, *more).stdout
        for more in ((), ("--schemes", "nf4"), ("--schemes", "nf4", "--method", "lora"))
    }
    assert list(pages.values()) == [True, False, True]


def test_the_demo_is_inspected_whole(qtui):
    data = inspect(qtui, "demo")
    assert data["model"]["architecture"] == "LlamaForCausalLM"
    assert all(t["sampled_parameters"] == t["parameters"] for t in data["tensors"])
    best = {s["scheme"]: s["sqnr_db"] for s in data["schemes"]}
    assert best["nf4:block64"] > best["fp4:block64"]
    assert data["conclusion"].endswith(".")


def test_a_sample_is_stated_and_full_reads_all(qtui, tmp_path):
    from safetensors.numpy import save_file

    rows = np.random.default_rng(1).normal(size=(3000, 1024)).astype(np.float32)
    path = tmp_path / "big.safetensors"
    save_file({"w": rows}, path)
    sampled = inspect(qtui, str(path), "--schemes", "int8:row")
    assert sampled["tensors"][0]["sampled_parameters"] == 1 << 20
    assert "sample" in sampled["sample"].lower()
    full = inspect(qtui, str(path), "--schemes", "int8:row", "--full")
    assert full["tensors"][0]["sampled_parameters"] == rows.size
    assert full["tensors"][0]["statistics"]["absmax"] == np.abs(rows).max()
    assert full["schemes"][0]["sqnr_db"] == pytest.approx(
        sampled["schemes"][0]["sqnr_db"], abs=0.05
    )


def test_a_tensor_without_a_finite_value_has_no_largest_one(qtui, tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "broken.safetensors"
    values = {"lost": np.full((8, 8), np.nan, np.float32), "zero": np.zeros((8, 8), np.float32)}
    save_file(values, path)
    lines = qtui("inspect", str(path), "--format", "text").stdout.splitlines()
    statistics = {
        name: line.split()[5:]
        for name in values
        for line in lines
        if f"  {name} " in line and "8 x 8" in line
    }
    assert statistics == {"lost": ["–", "–", "–", "–", "0"], "zero": ["0", "0", "0", "–", "0"]}


def test_empty_and_scalar_tensors_are_reported(qtui, tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "odd.safetensors"
    save_file({"empty": np.zeros((0, 8), np.float32), "scalar": np.array(3, np.float32)}, path)
    data = inspect(qtui, str(path))
    by_name = {t["name"]: t for t in data["tensors"]}
    assert by_name["empty"]["statistics"] is None
    assert by_name["scalar"]["statistics"]["max"] == 3.0
    assert all(s["sqnr_db"] is None for s in data["schemes"])
    for face in ("text", "markdown", "html"):
        assert qtui("inspect", str(path), "--format", face).returncode == 0


def test_headers_reads_no_values(qtui, checkpoint):
    data = inspect(qtui, str(checkpoint), "--headers")
    assert data["schemes"] == []
    assert all(t["statistics"] is None for t in data["tensors"])
    assert data["model"]["bytes"] == 192 * 128 * (4 + 2) + 4 * (128 + 192)


def test_a_pipe_obeys_columns(qtui, checkpoint):
    done = qtui("inspect", str(checkpoint), env={"COLUMNS": "80"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert max(map(len, qtui("formats", "0.1", env={"COLUMNS": "80"}).stdout.splitlines())) <= 80


def test_the_suffix_of_the_file_chooses_the_format(qtui, checkpoint, tmp_path):
    for suffix, start in ((".json", "{"), (".md", "# "), (".html", "<!doctype"), (".txt", "qtui")):
        target = tmp_path / f"report{suffix}"
        done = qtui("inspect", str(checkpoint), "--headers", "-o", str(target))
        assert done.returncode == 0, done.stderr
        assert target.read_text().startswith(start)
    done = qtui("inspect", str(checkpoint), "-o", str(tmp_path / "report.pdf"))
    assert (done.returncode, done.stdout) == (2, "")
    assert ".pdf" in done.stderr


def test_outlier_columns_are_named_in_every_face(qtui, checkpoint):
    for face in ("text", "markdown", "html"):
        assert "Outlier columns" in qtui("inspect", str(checkpoint), "--format", face).stdout


def test_no_decibels_are_never_minus_zero(qtui, tmp_path):
    # Too small for a ternary scale: everything becomes zero, and the error is the signal.
    path = tmp_path / "model.safetensors"
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32) * np.float32(1e-42)
    save_file({"w": x}, path)
    for more in ((), ("--sensitivity", "--objective", "weights")):
        done = qtui("inspect", str(path), "--schemes", "ternary", *more)
        assert done.returncode == 0, done.stderr
        assert "-0.0" not in done.stdout
