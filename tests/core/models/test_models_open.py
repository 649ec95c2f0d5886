"""Local paths that a person may give, and the errors if they cannot be opened."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from local_models import A, B, refused, save
from safetensors.numpy import save_file

from qtui_core.errors import ModelError
from qtui_core.job import Job
from qtui_core.models import open_model
from qtui_core.models.files.layout import natural_key


def test_a_folder_of_shards(sharded):
    progress = []
    with open_model(sharded, job=Job(lambda *p: progress.append(p[:2]))) as source:
        assert source.origin == "folder"
        assert source.architecture == "LlamaForCausalLM"
        assert {n: t.file for n, t in source.tensors.items()} == {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
        assert source.read_rows("a", 1, 2) == A[1:].tobytes()
        assert source.read_rows("b", 0, 4) == B.tobytes()
        assert (source.parameters, source.nbytes) == (10, 32)
        assert source.dtypes == {"F32": 6, "F16": 4}
        assert source.missing_weights is None
        source.require_weights()
    assert progress == [(1, 2), (2, 2)]
    assert open_model(str(sharded / "model.safetensors.index.json")).parameters == 10


@pytest.mark.parametrize(
    "present",
    [
        ["model.safetensors"],
        ["model.safetensors", "adapter_model.safetensors", "pytorch_model.bin"],
        ["model.safetensors", "consolidated.safetensors"],
        ["consolidated.safetensors", "other.safetensors"],
        ["odd name.safetensors"],
        ["odd.safetensors", "config.json", "notes.txt"],
    ],
)
def test_the_weights_of_a_folder(tmp_path, present):
    for name in present:
        if name.endswith(".safetensors"):
            save(tmp_path / name, **{"w": A} if name == present[0] else {"x": B})
        else:
            (tmp_path / name).write_text("{}")
    source = open_model(tmp_path)
    assert [t.file for t in source.tensors.values()] == [present[0]]


@pytest.mark.parametrize(
    "present",
    [
        ["m-1-of-2"], ["m-00001-of-00003", "m-00003-of-00003"], ["m-00007-of-90000000"],
        ["m-1-of-2", "m-00001-of-00002", "m-00002-of-00002"], ["m-1-of-2", "m-3-of-2"],
        ["m-1-of-2", "m-01-of-2"], ["m-2-of-2", "m-3-of-2"], ["m-1-of-2", "n-2-of-2"],
        ["one", "two"],
    ],
)  # fmt: skip
def test_files_that_nothing_puts_together_are_not_the_model(tmp_path, present):
    for number, name in enumerate(present):
        save(tmp_path / f"{name}.safetensors", **{f"t{number}": A})
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, r"no index .* Download what is missing, or open one")
    # The path of a shard requests only that shard.
    assert list(open_model(tmp_path / f"{present[-1]}.safetensors").tensors) == [f"t{number}"]


def test_shards_that_are_all_there(tmp_path):
    for names in (["m-00001-of-00001"], ["m-0-of-2", "m-1-of-2"], ["m-1-of-2", "m-2-of-2"]):
        for name in names:
            save(tmp_path / names[-1] / f"{name}.safetensors", **{name: A})
        assert len(open_model(tmp_path / names[-1]).tensors) == len(names)


def test_one_file_takes_the_config_beside_it(tmp_path):
    save(tmp_path / "w.safetensors", a=A)
    source = open_model(tmp_path / "w.safetensors")
    assert (source.origin, source.config, source.architecture) == ("file", None, None)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert open_model(tmp_path / "w.safetensors").architecture == "gpt2"


def test_a_bare_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 64, "limit": [0.0, Infinity]}')
    source = open_model(path)
    assert (source.origin, dict(source.tensors), source.parameters) == ("config", {}, 0)
    assert source.config["hidden_size"] == 64
    with pytest.raises(ModelError, match="configuration alone"):
        source.require_weights()
    assert open_model(tmp_path).config == source.config
    with pytest.raises(ModelError, match="no weights"):
        open_model(tmp_path).require_weights()


@pytest.mark.parametrize("text", ["[]", "3", "", "{", '{"a": 1', "\xff"])
def test_a_file_that_is_not_a_config(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    for path in (tmp_path, tmp_path / "config.json"):
        refused(path, "The configuration")


def test_names_are_in_natural_order(tmp_path):
    names = [f"layers.{i}.w" for i in (10, 2, 0, 1, 11)] + ["embed", "norm", "9" * 5000]
    save_file(dict.fromkeys(names, B), tmp_path / "m.safetensors")
    assert list(open_model(tmp_path).tensors) == [
        "9" * 5000,
        "embed",
        *(f"layers.{i}.w" for i in (0, 1, 2, 10, 11)),
        "norm",
    ]
    assert sorted(["a01", "a1", "a", "1a", "a1b2", "a1b10"], key=natural_key) == [
        "1a", "a", "a1", "a1b2", "a1b10", "a01",
    ]  # fmt: skip


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    refused(tmp_path, "it is empty")
    (tmp_path / "notes\x1b[31m.txt").write_text("x")
    refused(tmp_path, "it holds 'notes")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for path in (tmp_path, tmp_path / "model.gguf"):  # the second is cut off
        refused(path, "GGUF")


def test_missing_paths_suggest_what_is_there(tmp_path, monkeypatch):
    save(tmp_path / "llama-small" / "model.safetensors", a=A)
    refused(tmp_path / "llama-smal", r"there is '.*llama-small'")
    refused("/nowhere/x", "There is no file or folder '/nowhere/x'")
    for odd in ("\0", "", "  ", "a" * 5000, "/" + "a" * 300, "\udcff", "x@", "@x", "a/b/c/d"):
        refused(odd, "")
    refused("a/b/c", "hub id")
    refused("https://example.com/org/name", "address")
    monkeypatch.chdir(tmp_path)
    refused("./llama-smal", r"there is 'llama-small'")


def test_a_local_path_is_preferred_to_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(Path("org/name/model.safetensors"), a=A)
    source = open_model("org/name")
    assert (source.id, source.origin) == ("org/name", "folder")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_model("~/org/name").origin == "folder"


def test_paths_that_are_not_regular_files(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    refused(tmp_path / "x.safetensors", "neither")
    folder = tmp_path / "y"
    (folder / "model.safetensors").mkdir(parents=True)
    refused(folder, "is a folder; a file was expected")
    os.mkfifo(tmp_path / "pipe.safetensors")
    refused(tmp_path / "pipe.safetensors", "not a regular file")
    path = tmp_path / "config.json"
    os.mkfifo(path)
    refused(path, "not a regular file")
    path.unlink()
    path.touch()
    os.truncate(path, 5 << 30)
    refused(path, "no configuration is that long")
    path.unlink()


def test_a_config_may_repeat_keys_and_hold_control_characters(tmp_path):
    (tmp_path / "config.json").write_text('{"a": 1, "a": 2}')
    assert open_model(tmp_path).config == {"a": 2}
    (tmp_path / "config.json").write_text('{"architectures": ["A\\u001b[31m"]}')
    assert open_model(tmp_path).architecture == "A\\x1b[31m"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_large_models_do_not_stay_in_memory(tmp_path):
    """A process that reads 640 MiB of rows stays far below that in resident memory."""
    size = 640 << 20
    header = json.dumps({"a": {"dtype": "U8", "shape": [640, 1 << 20], "data_offsets": [0, size]}})
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    os.truncate(path, 8 + len(header) + size)
    program = (
        "import re, sys\n"
        "from qtui_core.models import open_model\n"
        "source = open_model(sys.argv[1])\n"
        "total = sum(sum(source.read_rows('a', i, i + 1)[::4096]) for i in range(640))\n"
        "print(total, re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    total, peak = map(int, done.stdout.split())
    assert total == 0
    assert peak < 400 << 10  # KiB
    path.unlink()
